# SPDX-License-Identifier: GPL-2.0-only
"""
Images that are files of an installation: what a rebuild keeps, and their provenance, as files beside them.
"""
import datetime
import json
import os

from easybuild.easyblocks.generic.containerimage import ContainerImage, last_line, run_command
from easybuild.tools.build_log import EasyBuildError, print_msg, print_warning
from easybuild.tools.config import build_option
from easybuild.tools.filetools import compute_checksum

from pytorch_install.runtime import read_json, write_json
from pytorch_install.transaction import keep_file

# The file that identifies an installed image, in the directory `provenance` beside it.
RECORD = 'image.json'

# What image.json has of the image's Python.
PYTHON = ("import json, platform, sys; "
          "json.dump({'python': sys.executable, 'python_version': platform.python_version()}, sys.stdout)")


class InstalledImage:
    """Steps of an easyblock that installs an image, `image`, as a file: a base before EB_PyTorchModule."""

    image_path = ContainerImage.image_path

    def fetch_image(self):
        """Fetch the image or what it is made of, unless the installed one is the same, and undamaged."""
        image, installed = self.image, self.installation.before(self.image.name)
        if not image.digest:  # a digest in the recipe identifies the image without a download
            image.fetch()
        record = read_json(os.path.join(os.path.dirname(installed), 'provenance', RECORD))
        if (self.cfg['image'] == image.name and not self.cfg['image_checksum']
                and record.get('source') == image.reference and record.get('sha256') != image.checksum):
            raise EasyBuildError("%s has changed since its installation: it has SHA-256 %s; recorded: %s. Restore the "
                                 "earlier image, or accept this one with image_checksum = '%s' in the recipe",
                                 image.file, image.checksum, record.get('sha256'), image.checksum)
        image.is_kept = False
        if record.get('identity') == image.identity and os.path.isfile(installed) and not build_option('force'):
            image.is_kept = compute_checksum(installed) == record['sha256']
            if image.is_kept:
                image.checksum = record['sha256']
                print_msg("image %s: the installed one is the same, it is kept" % image.reference)
            else:
                print_warning("%s is damaged: its SHA-256 has changed since its installation. Installing it again",
                              installed)
        if image.digest and not image.is_kept:
            image.fetch()

    def install_runtime(self):
        if self.image.is_kept:
            keep_file(self.installation.before(self.image.name), self.image_path)
        else:
            self.image.install(self.image_path)
        self.complete_runtime()


def write_provenance(image, path, python, version):
    """
    Write image.json and packages.json (what `pip inspect` prints); return their directory.

    :param python: command of the image's Python, without this user's environment
    :param version: arguments with which the runtime prints its version
    """
    directory, base = os.path.join(os.path.dirname(path), 'provenance'), getattr(image, 'base', None)
    record = {
        'source': image.reference,
        'digest': image.digest,
        'identity': image.identity,
        'sha256': image.checksum,
        'size': os.path.getsize(path),
        'installed': datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds'),
        'runtime': run_command([image.runtime, *version], hidden=True).output.strip(),
        'easyconfig': os.path.basename(image.recipe.path),
        **json.loads(run_command([*python, '-I', '-c', PYTHON], split_stderr=True, hidden=True).output),
        **({'base': {'module': base.module, **base.record}} if base else {}),
    }
    write_json(os.path.join(directory, RECORD), record)
    packages = run_command([*python, '-I', '-m', 'pip', '--isolated', 'inspect'], fail_on_error=False, hidden=True,
                           split_stderr=True)
    if packages.exit_code == 0:
        write_json(os.path.join(directory, 'packages.json'), json.loads(packages.output))
    else:
        print_warning("no list of packages: pip failed in the image: %s", last_line(packages.stderr))
    return directory
