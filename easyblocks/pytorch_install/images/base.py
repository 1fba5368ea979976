# SPDX-License-Identifier: GPL-2.0-only
"""
The installed image that another one is built on: what its installation recorded, and what must stay as it is.
"""
import os
from typing import NamedTuple, Optional

from easybuild.easyblocks.generic.containerimage import checksum_of, require_machine
from easybuild.easyblocks.generic.lockedvenv import PIN, read_lock
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import read_file

from pytorch_install.images.provenance import RECORD, read_json
from pytorch_install.programs.hold_packages import canonical_name


class Base(NamedTuple):
    """
    An installed container module.

    module: its name
    image: path of its image
    record: content of its image.json
    python: version of its Python
    kept: versions that packages on top must not replace, by canonical names
    executable: path of its Python in the image, None if the installation did not record it
    """

    module: str
    image: str
    record: dict
    python: str
    kept: dict
    executable: Optional[str] = None

    @property
    def checksum(self):
        """SHA-256 that the installation recorded."""
        return self.record['sha256']


def base_dependency(easyconfig, software):
    """Module, as users load it, whose image is the base: the build dependency of the same software; or None."""
    found = [dependency for dependency in easyconfig.dependencies() if dependency['name'] == software]
    names = ', '.join(dependency['short_mod_name'] for dependency in found)
    if len(found) > 1:
        raise EasyBuildError("%s names %s, but only one module can be the base of an image", easyconfig.path, names)
    if found and not found[0]['build_only']:
        raise EasyBuildError("%s names %s in 'dependencies', but two PyTorch modules cannot be loaded together. To "
                             "build on its image, name it in 'builddependencies'", easyconfig.path, names)
    return names or None


def read_base(module, directory, image):
    """The Base that a module's installation in `directory` has recorded; `image` is the path that the module has."""
    record = read_json(os.path.join(directory, 'provenance', RECORD)) or {}
    # earlier installations have the version in packages.json
    python = record if 'python_version' in record else read_json(os.path.join(directory, 'provenance', 'packages.json'))
    if not (image and record and python):
        raise EasyBuildError("%s cannot be the base of an image: it has no image with a record (%s). Name a container "
                             "module of EB_PyTorchContainer", module, os.path.join(directory, 'provenance', RECORD))
    return Base(module, image, record, python['python_version'],
                read_constraints(os.path.join(directory, 'constraints.txt')), python.get('python'))


def read_constraints(path):
    """Versions by the canonical names of packages, from a file with lines `name==version`; empty without the file."""
    if not os.path.exists(path):
        return {}
    found = (PIN.fullmatch(line.strip()) for line in read_file(path).splitlines())
    return {canonical_name(pin['name']): pin['version'] for pin in found if pin}


def verify_base(base):
    """Stop unless the base's image is for this host's machine, and as it was installed."""
    require_machine(base.image)
    found = checksum_of(base.image)
    if found != base.checksum:
        raise EasyBuildError("%s, the image of %s, has changed since its installation: it has SHA-256 %s, expected %s. "
                             "Install it again with `eb --rebuild %s`",
                             base.image, base.module, found, base.checksum, base.record['easyconfig'])


def check_lock(base, lock, python_version):
    """Stop if the packages of a lock do not fit the base; their wheels are for `python_version` (<major>.<minor>)."""
    if base.python.split('.')[:2] != python_version.split('.'):
        raise EasyBuildError("%s has Python %s, and the lock is for Python %s. Lock the requirements for the base's "
                             "Python, and set 'python_version'", base.module, base.python, python_version)
    for pin in read_lock(lock):
        kept = base.kept.get(canonical_name(pin.name), pin.version)
        if kept != pin.version:
            raise EasyBuildError("%s: line %d: %s conflicts with the base: %s keeps %s==%s. Remove the line, or lock "
                                 "this version", lock, pin.line, pin, base.module, pin.name, kept)
