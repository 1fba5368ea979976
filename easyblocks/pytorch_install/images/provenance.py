# SPDX-License-Identifier: GPL-2.0-only
"""
Provenance of an installed image: its source, its packages and its libraries, as files beside it.
"""
import datetime
import json
import os

from easybuild.tools.build_log import print_msg, print_warning
from easybuild.tools.filetools import mkdir, write_file

from pytorch_install.images.container_runtime import image_python
from pytorch_install.images.image_files import checksum_of, read_note
from pytorch_install.runtime import last_line, run_command, run_program

# The file that identifies an installed image.
RECORD = 'image.json'

# What image.json has of the image's Python.
PYTHON = ("import json, platform, sys; "
          "json.dump({'python': sys.executable, 'python_version': platform.python_version()}, sys.stdout)")


def write_provenance(spec, image, path, version=('--version',), python=None):
    """
    Write image.json, packages.json (what `pip inspect` prints) and libraries.json.

    :param spec: the ImageSpec
    :param image: the Image
    :param path: path of the installed image; the files are written to a directory beside it
    :param version: arguments with which the runtime prints its version
    :param python: command of the image's Python, without this user's environment; by default, that of Apptainer
    """
    python = python or image_python(spec.runtime, path, spec.conda_activation, '--cleanenv')
    record = {
        'image': os.path.basename(path),
        'source': image.reference,
        'digest': image.digest,
        'identity': image.identity,
        'sha256': image.checksum or checksum_of(path),
        'size': os.path.getsize(path),
        'installed': datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds'),
        'runtime': run_command([spec.runtime, *version], hidden=True).output.strip(),
        'easyconfig': os.path.basename(spec.easyconfig),
        **json.loads(run_command([*python, '-I', '-c', PYTHON], split_stderr=True, hidden=True).output),
    }
    if spec.base:
        record['sources'] = {source.name: source.sha256 for source in spec.sources}
        record['base'] = {'module': spec.base.module, **spec.base.record}
    libraries = json.loads(run_program(python, 'list_libraries.py', split_stderr=True, hidden=True).output)
    directory = directory_of(path)
    mkdir(directory, parents=True)
    for name, content in [(RECORD, record), ('packages.json', python_packages(python)), ('libraries.json', libraries)]:
        write_file(os.path.join(directory, name), json.dumps(content, indent=2) + '\n')


def directory_of(path):
    """Directory with the provenance of an installed image."""
    return os.path.join(os.path.dirname(path), 'provenance')


def installed_checksum(image, path):
    """
    SHA-256 of an installed image if it is the recipe's, and undamaged; else None.

    :param image: the recipe's Image
    :param path: path of the installed image, which need not exist
    """
    identity, checksum = read_note(os.path.join(directory_of(path), RECORD), 'identity', 'sha256')
    if not os.path.isfile(path) or identity != image.identity:
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
