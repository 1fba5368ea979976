# SPDX-License-Identifier: GPL-2.0-only
"""
Images that are files of an installation: what a rebuild keeps, and their provenance, as files beside them.
"""
import datetime
import json
import os

from easybuild.easyblocks.generic.containerimage import run_command
from easybuild.tools.build_log import EasyBuildError, print_msg, print_warning
from easybuild.tools.config import build_option
from easybuild.tools.filetools import compute_checksum

from pytorch_install.parameters import check_machine
from pytorch_install.runtime import read_json, write_json
from pytorch_install.transaction import keep_file

# The file that identifies an installed image, in the directory `provenance` beside it.
RECORD = 'image.json'

# What image.json has of the image's Python.
PYTHON = ("import json, platform, sys; "
          "json.dump({'python': sys.executable, 'python_version': platform.python_version()}, sys.stdout)")

# `uname -m` by the codes in SIF headers: https://github.com/apptainer/sif, pkg/sif/arch.go
MACHINES = {b'02': 'x86_64', b'04': 'aarch64', b'06': 'ppc64le'}


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
            self.require_recorded(record)
        image.is_kept = record.get('identity') == image.identity and is_undamaged(installed, record['sha256'])
        if image.is_kept:
            image.checksum = record['sha256']
            print_msg("image %s: the installed one is the same, it is kept" % image.reference)
            return
        if image.digest:
            image.fetch()
        if image.file.endswith('.sif') and os.path.isfile(image.file):
            check_machine(image.file, machines_of_image(image.file), "Choose another image")

    def require_recorded(self, record):
        """Stop if a file that the site provides without a checksum is another one than the installed one."""
        image = self.image
        if self.cfg['image'] != image.name or self.cfg['image_checksum']:
            return
        if record.get('source') == image.reference and record.get('sha256') != image.checksum:
            raise EasyBuildError("%s has changed since its installation: it has SHA-256 %s; recorded: %s. Restore the "
                                 "earlier image, or accept this one with image_checksum = '%s' in the recipe",
                                 image.file, image.checksum, record.get('sha256'), image.checksum)

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


def machines_of_image(path):
    """Machines (`uname -m`) that a SIF image is for; none if its header names none."""
    with open(path, 'rb') as file:
        header = file.read(47)
    return [machine for code, machine in MACHINES.items() if header[45:47] == code]


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
