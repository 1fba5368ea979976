# SPDX-License-Identifier: GPL-2.0-only
"""
An image that is unpacked into a directory, changed by its own pip, and packed again.

That needs neither root nor `fakeroot`, `proot` or subordinate ids, which not every site has. cotainr builds in the same
way on LUMI (https://github.com/DeiC-HPC/cotainr, cotainr/container.py).
"""
import os

from easybuild.easyblocks.generic.containerimage import last_line, run_command, runtime_variables
from easybuild.tools.build_log import EasyBuildError

from pytorch_install.images.layout import HOOK_CODE, add_layout
from pytorch_install.runtime import image_python

# pip without a network and without users' settings; a distribution's Python needs the third to install (PEP 668).
PIP = {'PIP_CONFIG_FILE': os.devnull, 'PIP_NO_INDEX': '1', 'PIP_BREAK_SYSTEM_PACKAGES': '1', 'PIP_USER': '0',
       'PIP_NO_CACHE_DIR': '1', 'PIP_DISABLE_PIP_VERSION_CHECK': '1', 'PIP_ROOT_USER_ACTION': 'ignore'}

# Variables of users with which other files would get into the build.
FOREIGN = runtime_variables(BIND=None, BINDPATH=None, OVERLAY=None, OVERLAYIMAGE=None)


class Sandbox:
    """The unpacked image, in a directory below `builddir`."""

    def __init__(self, runtime, builddir, conda_activation):
        self.runtime = runtime
        self.builddir = builddir
        self.conda_activation = conda_activation
        self.directory = os.path.join(builddir, 'image')

    def find_executable(self, image):
        """Path of Python in an image file, by the recipe's activation."""
        python = image_python(self.runtime, image, self.conda_activation, '--cleanenv')
        return last_line(run_command([*python, '-I', '-c', 'import sys; print(sys.executable)'], FOREIGN,
                                     work_dir=self.builddir, hidden=True, split_stderr=True).output)

    def unpack(self, image):
        """Unpack an image; its owner may change all of it, as root may."""
        run_command([self.runtime, 'build', '--sandbox', self.directory, image], FOREIGN, work_dir=self.builddir)
        run_command(['chmod', '-R', 'u+rwX', self.directory], hidden=True)

    def pack(self, image, mksquashfs_args):
        """Pack the directory with its layout, and remove it, as it takes several times the image's space."""
        add_layout(self.directory)
        run_command([*self.python('--no-home', '--writable'), '-Ic', HOOK_CODE], FOREIGN, work_dir=self.builddir,
                    fail_on_error=False, hidden=True)  # an image without torch, or of another machine
        run_command([self.runtime, 'build', image, self.directory], work_dir=self.builddir,
                    variables={**FOREIGN, **runtime_variables(MKSQUASHFS_ARGS=mksquashfs_args)})
        run_command(['rm', '-rf', self.directory], hidden=True)

    def python(self, *options):
        """Command of the image's Python, with options of the runtime's `exec`."""
        return image_python(self.runtime, self.directory, self.conda_activation, '--cleanenv', *options)

    def building_python(self):
        """Command of the image's Python for builds: the build directory is its home, and the image is read-only."""
        return self.python('--home', self.builddir)

    def install(self, wheels, requirements, *words):
        """Install packages from a directory of wheels with the image's pip; `words` are options of pip."""
        # /mnt and /media exist in every Linux image, and are empty: a writable image has no other place for binds
        binds = '%s:/mnt,%s:/media' % (wheels, os.path.dirname(requirements))
        result = run_command([*self.python('--no-home', '--writable', '--bind', binds), '-s', '-m', 'pip', 'install',
                              '--quiet', '--no-deps', '--find-links', '/mnt', *words,
                              '-r', '/media/' + os.path.basename(requirements)],
                             {**FOREIGN, **inside(PIP)}, work_dir=self.builddir, fail_on_error=False)
        if result.exit_code != 0:
            raise EasyBuildError("The image's pip could not install %s: %s. The full output is in EasyBuild's log",
                                 os.path.basename(requirements), last_line(result.output))

    def broken_requirements(self):
        """Lines of `pip check`: requirements of packages that are missing, or have another version."""
        result = run_command([*self.python('--no-home'), '-s', '-m', 'pip', 'check'], {**FOREIGN, **inside(PIP)},
                             work_dir=self.builddir, fail_on_error=False, hidden=True, split_stderr=True)
        return set() if result.exit_code == 0 else set(result.output.splitlines())


def inside(variables):
    """Variables of the host with which the runtime sets variables in an image."""
    return {prefix + name: value for name, value in variables.items()
            for prefix in ('APPTAINERENV_', 'SINGULARITYENV_')}
