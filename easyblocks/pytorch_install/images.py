# SPDX-License-Identifier: GPL-2.0-only
"""
Images that are files of an installation: what a rebuild keeps, and their provenance, as files beside them.
"""
import datetime
import json
import os

from easybuild.easyblocks.generic.containerimage import run_command
from easybuild.tools.build_log import print_msg, print_warning
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

    @property
    def image_path(self):
        """Path of the installed image."""
        return os.path.join(self.installdir, self.image.name)

    def fetch_image(self):
        """Fetch the image or what it is made of, unless the installed one is the same, and undamaged."""
        image = self.image
        installed = self.installation.before(image.name)
        record = read_json(os.path.join(os.path.dirname(installed), 'provenance', RECORD))
        if not image.digest:  # a digest in the recipe identifies the image without a download
            image.fetch()
        image.is_kept = record.get('identity') == image.identity and is_undamaged(installed, record['sha256'])
        if image.is_kept:
            image.checksum = record['sha256']
            print_msg("image %s: the installed one is the same, it is kept" % image.reference)
            return
        if image.digest:
            image.fetch()

    def install_runtime(self):
        """Install the image, or keep the previous installation's."""
        if self.image.is_kept:
            keep_file(self.installation.before(self.image.name), self.image_path)
        else:
            self.image.install(self.image_path)
        self.complete_runtime()


def is_undamaged(path, checksum):
    """Whether an installed image can be kept."""
    if build_option('force') or not os.path.isfile(path):
        return False
    if compute_checksum(path) == checksum:
        return True
    print_warning("%s is damaged: its SHA-256 has changed since its installation. Installing it again", path)
    return False


def write_provenance(image, path, python, version):
    """
    Write image.json, which identifies an installed image.

    :param python: command of the image's Python, without this user's environment
    :param version: arguments with which the runtime prints its version
    """
    directory = os.path.join(os.path.dirname(path), 'provenance')
    record = {
        'source': image.reference,
        'digest': image.digest,
        'identity': image.identity,
        'sha256': image.checksum,
        'size': os.path.getsize(path),
        'installed': datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds'),
        'runtime': run_command([image.runtime, *version], hidden=True).output.strip(),
        'easyconfig': os.path.basename(image.recipe.path),
    }
    record.update(json.loads(run_command([*python, '-I', '-c', PYTHON], split_stderr=True, hidden=True).output))
    base = getattr(image, 'base', None)
    if base:
        record['base'] = {'module': base.module, **base.record}
    write_json(os.path.join(directory, RECORD), record)
