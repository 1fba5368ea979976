# SPDX-License-Identifier: GPL-2.0-only
"""
Packages that users install on top of an image.

They are beside the installation directories, which EasyBuild empties: in .user-software/<version>, or packed into
.user-software/<version>.squashfs (bin/make-squashfs).
"""
import contextlib
import glob
import os

from easybuild.tools.build_log import EasyBuildError, print_warning
from easybuild.tools.filetools import find_backup_name_candidate, mkdir, remove_dir, symlink

from pytorch_install.programs.hold_packages import LINE, OF_IMAGE
from pytorch_install.runtime import run_program

PACKED = '.squashfs'

# File in the directory: the directory is in use although the packed file exists (bin/unmake-squashfs).
UNPACKED = '.unpacked'

ENVIRONMENT = os.path.join('venv', 'pytorch')

# States of the environment that `find` tells: for another Python or another place of packages (exit status of
# make_venv.py), or none. All others fit the image, or cannot be checked there, and are kept.
OUTDATED = 3
ABSENT = 'absent'


class UserSoftware:
    """
    The environment on top of one installation.

    Every installation makes a new one, `part`, which the sanity check uses. The users' environment is not changed
    before the installation is final; one that fits the image keeps its packages.
    """

    def __init__(self, installdir):
        self.installdir = installdir
        software, self.version = os.path.split(installdir)
        self.store = os.path.join(software, '.user-software')
        self.directory = os.path.join(self.store, self.version)
        self.packed = self.directory + PACKED
        self.environment = os.path.join(self.directory, ENVIRONMENT)
        self.part = os.path.join(self.store, '.%s.part' % self.version)

    def prepare(self, python):
        """Make a new environment beside the users' own, and return whether theirs fits the image (see `find`)."""
        for name, path in [('user-software', self.directory), ('user-software' + PACKED, self.packed)]:
            symlink(os.path.relpath(os.path.realpath(path), os.path.realpath(self.installdir)),
                    os.path.join(self.installdir, name), use_abspath_source=False)
        remove_dir(self.part)  # left by an installation that was killed
        mkdir(self.part, parents=True)
        run_in_image(python, 'make', self.part + ':/user-software', fail_on_error=True)
        found = self.find(python)
        if found in (OUTDATED, ABSENT):  # what `finish` renames: until then, the installation can be undone
            for path in (self.directory, os.path.dirname(self.environment)):
                if os.path.isdir(path) and not os.access(path, os.W_OK):
                    raise EasyBuildError("No write permission: %s, where the image needs a new environment. Ask its "
                                         "owner, or move it", path)
        return found

    def find(self, python):
        """State of the users' environment: OUTDATED, ABSENT, or another one."""
        if self.is_packed():
            bind = self.packed + ':/user-software:ro,image-src=/'
        elif os.path.isdir(self.environment):
            bind = self.directory + ':/user-software'
        else:
            return ABSENT
        return run_in_image(python, 'check', bind, fail_on_error=False).exit_code

    def finish(self, found):
        """Put the new environment in place if `prepare` found none that fits; after a kill, the next `eb` does."""
        if found == OUTDATED:
            self.keep_aside()
        if found in (OUTDATED, ABSENT):
            self.use_part()
        elif not self.is_packed():
            self.renew()

    def keep_aside(self):
        """Rename what was made with another image."""
        for path in (self.packed, self.environment):
            if os.path.exists(path):
                aside = find_backup_name_candidate(path)
                print_warning("%s does not fit the Python of the image: it is kept as %s, and replaced by a new, "
                              "empty one", path, aside)
                os.rename(path, aside)

    def use_part(self):
        """Rename the new environment to that of the users."""
        if os.path.isdir(self.directory):
            mkdir(os.path.dirname(self.environment), parents=True)
            os.rename(os.path.join(self.part, ENVIRONMENT), self.environment)
        else:
            os.rename(self.part, self.directory)

    def is_packed(self):
        """Whether the packed file is in use."""
        return os.path.isfile(self.packed) and not os.path.isfile(os.path.join(self.directory, UNPACKED))

    def renew(self):
        """Replace what an earlier release made, or a user removed, if this is permitted."""
        with contextlib.suppress(OSError):
            for pattern in ('bin/pip*', 'lib/python*/*/zz_image.pth'):
                for new in glob.glob(os.path.join(glob.escape(self.part), ENVIRONMENT, pattern)):
                    os.replace(new, os.path.join(self.directory, os.path.relpath(new, self.part)))


def run_in_image(python, task, bind, **options):
    """Run a task of make_venv.py with the image's Python and /user-software; return EasyBuild's result."""
    # without the host's PYTHONPATH, the image can set its own
    variables = {'PYTHONPATH': None, 'SINGULARITY_BIND': bind, 'APPTAINER_BIND': bind}
    return run_program(python, 'make_venv.py', task, LINE % OF_IMAGE, variables=variables, hidden=True, **options)


