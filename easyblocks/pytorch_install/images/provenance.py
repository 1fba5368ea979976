# SPDX-License-Identifier: GPL-2.0-only
"""
Provenance of an installed image: its source, its packages and its libraries, as files beside it.
"""
import datetime
import json
import os

from easybuild.easyblocks.generic.containerimage import checksum_of, last_line, run_command
from easybuild.tools.build_log import print_msg, print_warning
from easybuild.tools.filetools import mkdir, write_file

from pytorch_install.runtime import image_python, run_program

# The file that identifies an installed image.
RECORD = 'image.json'

# What image.json has of the image's Python.
PYTHON = ("import json, platform, sys; "
          "json.dump({'python': sys.executable, 'python_version': platform.python_version()}, sys.stdout)")


def write_provenance(image, path, python=None, version=('--version',)):
    """
    Write image.json, packages.json (what `pip inspect` prints) and libraries.json.

    :param python: command of the image's Python, without this user's environment; by default, that of Apptainer
    :param version: arguments with which the runtime prints its version
    """
    python = python or image_python(image.runtime, path, image.recipe['conda_activation'], '--cleanenv')
    record = {
        'image': os.path.basename(path),
        'source': image.reference,
        'digest': image.digest,
        'identity': image.identity,
        'sha256': image.checksum or checksum_of(path),
        'size': os.path.getsize(path),
        'installed': datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds'),
        'runtime': run_command([image.runtime, *version], hidden=True).output.strip(),
        'easyconfig': os.path.basename(image.recipe.path),
        **json.loads(run_command([*python, '-I', '-c', PYTHON], split_stderr=True, hidden=True).output),
    }
    base = getattr(image, 'base', None)
    if base:
        record['sources'] = {source['name']: source['sha256'] for source in image.sources}
        record['base'] = {'module': base.module, **base.record}
    libraries = json.loads(run_program(python, 'list_libraries.py', split_stderr=True, hidden=True).output)
    directory = directory_of(path)
    mkdir(directory, parents=True)
    for name, content in [(RECORD, record), ('packages.json', python_packages(python)), ('libraries.json', libraries)]:
        write_file(os.path.join(directory, name), json.dumps(content, indent=2) + '\n')


def directory_of(path):
    """Directory with the provenance of an installed image."""
    return os.path.join(os.path.dirname(path), 'provenance')


def read_json(path):
    """Content of a JSON file; None if the file is missing or damaged."""
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def fetch_unless_kept(image, installed):
    """
    Fetch an image, unless the installed one is the same.

    :param installed: path of an installed image that may be kept, which need not exist; None with --force
    """
    if not image.digest:  # a digest in the recipe identifies the image without a download
        image.fetch()
    checksum = installed_checksum(image, installed) if installed else None
    image.is_kept = bool(checksum)
    if checksum:
        image.checksum = checksum
    elif image.digest:
        image.fetch()


def installed_checksum(image, path):
    """SHA-256 of an installed image, which need not exist, if it is the recipe's, and undamaged; else None."""
    record = read_json(os.path.join(directory_of(path), RECORD))
    identity, checksum = map((record if isinstance(record, dict) else {}).get, ('identity', 'sha256'))
    if not os.path.isfile(path) or not checksum or identity != image.identity:
        return None
    if checksum_of(path) != checksum:
        print_warning("%s is damaged: its SHA-256 has changed since its installation. Installing it again", path)
        return None
    print_msg("image %s: the installed one is the same, it is kept" % image.reference)
    return checksum


def python_packages(python):
    """What an image's `pip inspect` prints, or `pip list` before pip 22.2; empty, with a warning, without pip."""
    for words in (['inspect'], ['list', '--format=json']):
        result = run_command([*python, '-I', '-m', 'pip', '--isolated', *words], fail_on_error=False, hidden=True,
                             split_stderr=True)
        if result.exit_code == 0:
            return json.loads(result.output)
    print_warning("no list of packages: pip failed in the image: %s", last_line(result.stderr))
    return {}
