# SPDX-License-Identifier: GPL-2.0-only
"""
Packages that users install on top of an image.

They are beside the installation directories, which EasyBuild empties: in .user-software/<version>, or packed into
.user-software/<version>.squashfs (bin/make-squashfs).
"""
import glob
import os

from easybuild.easyblocks.generic.containerimage import last_line
from easybuild.tools.build_log import EasyBuildError, print_warning
from easybuild.tools.filetools import find_backup_name_candidate, mkdir, remove_dir, symlink

from pytorch_install.programs.hold_packages import LINE, OF_IMAGE
from pytorch_install.runtime import run_program

PACKED = '.squashfs'

# File in the directory: the directory is in use although the packed file exists (bin/unmake-squashfs).
UNPACKED = '.unpacked'

ENVIRONMENT = os.path.join('venv', 'pytorch')

# Exit statuses of make_venv.py: the environment fits the image, is for another Python, or does not see its packages.
FITS = 0
OUTDATED = 3
MOVED = 4
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
        """State of the users' environment: FITS, OUTDATED, MOVED or ABSENT."""
        if self.is_packed():
            bind = self.packed + ':/user-software:ro,image-src=/'
        elif os.path.isdir(self.environment):
            bind = self.directory + ':/user-software'
        else:
            return ABSENT
        result = run_in_image(python, 'check', bind, fail_on_error=False)
        if result.exit_code == MOVED and self.is_packed():
            return OUTDATED  # it is read-only
        if result.exit_code not in (FITS, OUTDATED, MOVED):
            print_warning("%s cannot be checked in the image (%s); it is kept", bind.partition(':')[0],
                          last_line(result.output))
            return FITS
        return result.exit_code

    def finish(self, found):
        """Put the new environment in place if `prepare` found none that fits; after a kill, the next `eb` does."""
        if found == OUTDATED:
            self.keep_aside()
        if found in (OUTDATED, ABSENT):
            self.use_part()
        elif not self.is_packed():
            self.update(found)

    def keep_aside(self):
        """Rename what was made with another Python."""
        for path in (self.packed, self.environment):
            if os.path.exists(path):
                aside = find_backup_name_candidate(path)
                print_warning("%s was made with another Python than the image's: it is kept as %s, and replaced by a "
                              "new, empty one", path, aside)
                os.rename(path, aside)

    def use_part(self):
        """Rename the new environment to that of the users."""
        if os.path.isdir(self.directory):
            mkdir(os.path.dirname(self.environment), parents=True)
            os.rename(os.path.join(self.part, ENVIRONMENT), self.environment)
        else:
            os.rename(self.part, self.directory)

    def update(self, found):
        """Renew what an earlier release made, a user removed, or an image at another path needs."""
        self.renew('bin', 'pip*')
        is_linked = self.renew('lib', 'python*', '*', 'zz_image.pth')
        if found == MOVED and not is_linked:
            print_warning("%s does not link to the image's packages. Ask its owner to run `eb --rebuild`",
                          self.environment)

    def is_packed(self):
        """Whether the packed file is in use."""
        return os.path.isfile(self.packed) and not os.path.isfile(os.path.join(self.directory, UNPACKED))

    def renew(self, *pattern):
        """Replace files of the users' environment by those of the new one; return whether this is permitted."""
        try:
            for new in glob.glob(os.path.join(glob.escape(self.part), ENVIRONMENT, *pattern)):
                os.replace(new, os.path.join(self.directory, os.path.relpath(new, self.part)))
        except OSError:
            return False
        return True


def run_in_image(python, task, bind, **options):
    """Run a task of make_venv.py with the image's Python and /user-software; return EasyBuild's result."""
    # without the host's PYTHONPATH, the image can set its own
    variables = {'PYTHONPATH': None, 'SINGULARITY_BIND': bind, 'APPTAINER_BIND': bind}
    return run_program(python, 'make_venv.py', task, LINE % OF_IMAGE, variables=variables, hidden=True, **options)


