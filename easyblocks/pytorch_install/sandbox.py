# SPDX-License-Identifier: GPL-2.0-only
"""
An image that is unpacked into a directory, changed by its own pip, and packed again; and what every image has that is
built here: directories for the module's binds, `run`, and the search path of shells.

That needs neither root nor `fakeroot`, `proot` or subordinate ids, which not every site has. cotainr builds in the same
way on LUMI (https://github.com/DeiC-HPC/cotainr, cotainr/container.py).
"""
import hashlib
import os
import re
import shlex

from easybuild.easyblocks.generic.containerimage import last_line, run_command, runtime_variables
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import build_option
from easybuild.tools.filetools import copy_file, mkdir, read_file, remove_file, write_file

from pytorch_install.programs.hold_packages import HOOK, LINE, OF_IMAGE
from pytorch_install.runtime import image_python

# A user's build on top of the image, with the module loaded, cannot make them.
MOUNT_POINTS = ('/runscripts', '/payload', '/user-software')

HERE = os.path.dirname(os.path.abspath(__file__))

# `singularity run` runs its arguments, or Python without any.
RUNSCRIPT = os.path.join(HERE, 'runscript.sh')

PROFILE = os.path.join(HERE, 'profile.sh')
IN_IMAGE = '/etc/profile.d/zz-start-path.sh'

# What Apptainer and Singularity make where there is no runscript prints this, and ends with status 0.
NO_RUNSCRIPT = 'There is no runscript defined for this container'

# Debian's bash reads it in interactive shells that are no login shells.
BASHRC = '/etc/bash.bashrc'

# Code for the image's Python: each Python that sees its torch keeps it when users install packages.
HOOK_CODE = ('import importlib.util as util, os; torch = util.find_spec("torch"); '
             'torch and open(os.path.join(os.path.dirname(os.path.dirname(torch.origin)), %r), "w").write(%r)'
             % (HOOK, LINE % OF_IMAGE))

# Identifies all of this: --rebuild makes an image again that was made with another layout.
LAYOUT = hashlib.sha256('\n'.join([
    HOOK_CODE, *MOUNT_POINTS, *(read_file(file) for file in (RUNSCRIPT, PROFILE))]).encode()).hexdigest()[:8]

# pip without a network and without users' settings; a distribution's Python needs the third to install (PEP 668).
PIP = {'PIP_CONFIG_FILE': os.devnull, 'PIP_NO_INDEX': '1', 'PIP_BREAK_SYSTEM_PACKAGES': '1', 'PIP_USER': '0',
       'PIP_NO_CACHE_DIR': '1', 'PIP_DISABLE_PIP_VERSION_CHECK': '1', 'PIP_ROOT_USER_ACTION': 'ignore'}

# Variables of users with which other files would get into the build.
FOREIGN = runtime_variables(BIND=None, BINDPATH=None, OVERLAY=None, OVERLAYIMAGE=None)


def inside(variables):
    """Variables of the host with which the runtime sets variables in an image."""
    return {prefix + name: value for name, value in variables.items()
            for prefix in ('APPTAINERENV_', 'SINGULARITYENV_')}


class Sandbox:
    """The unpacked image, in a directory below `builddir`."""

    def __init__(self, runtime, builddir, conda_activation):
        self.runtime, self.builddir, self.conda_activation = runtime, builddir, conda_activation
        self.directory = os.path.join(builddir, 'image')

    def run(self, words, variables=FOREIGN, **options):
        return run_command(words, variables, work_dir=self.builddir, **options)

    def find_executable(self, image):
        """Path of Python in an image file, by the recipe's activation."""
        python = image_python(self.runtime, image, self.conda_activation, '--cleanenv')
        return last_line(self.run([*python, '-I', '-c', 'import sys; print(sys.executable)'], hidden=True,
                                  split_stderr=True).output)

    def unpack(self, image):
        """Unpack an image; its owner may change all of it, as root may."""
        self.run([self.runtime, 'build', '--sandbox', self.directory, image])
        run_command(['chmod', '-R', 'u+rwX', self.directory], hidden=True)

    def pack(self, image, mksquashfs_args):
        """Pack the directory with its layout, and remove it, as it takes several times the image's space."""
        add_layout(self.directory)
        self.run([*self.python('--no-home', '--writable'), '-Ic', HOOK_CODE], fail_on_error=False,
                 hidden=True)  # an image without torch, or of another machine
        self.run([self.runtime, 'build', image, self.directory],
                 {**FOREIGN, **runtime_variables(MKSQUASHFS_ARGS=mksquashfs_args)})
        run_command(['rm', '-rf', self.directory], hidden=True)

    def python(self, *options):
        """Command of the image's Python, with options of the runtime's `exec`."""
        return image_python(self.runtime, self.directory, self.conda_activation, '--cleanenv', *options)

    def install(self, wheels, requirements, *words):
        """Install packages from a directory of wheels with the image's pip; `words` are options of pip."""
        # /mnt and /media exist in every Linux image, and are empty: a writable image has no other place for binds
        binds = '%s:/mnt,%s:/media' % (wheels, os.path.dirname(requirements))
        result = self.run([*self.python('--no-home', '--writable', '--bind', binds), '-s', '-m', 'pip', 'install',
                           '--quiet', '--no-deps', '--find-links', '/mnt', *words,
                           '-r', '/media/' + os.path.basename(requirements)],
                          {**FOREIGN, **inside(PIP)}, fail_on_error=False)
        if result.exit_code != 0:
            raise EasyBuildError("The image's pip could not install %s: %s. The full output is in EasyBuild's log",
                                 os.path.basename(requirements), last_line(result.output))

    def broken_requirements(self):
        """Lines of `pip check`: requirements of packages that are missing, or have another version."""
        result = self.run([*self.python('--no-home'), '-s', '-m', 'pip', 'check'], {**FOREIGN, **inside(PIP)},
                          fail_on_error=False, hidden=True, split_stderr=True)
        return set() if result.exit_code == 0 else set(result.output.splitlines())


def with_layout(definition):
    """Text of a definition file with this layout; its own runscript stays. Apptainer joins sections of one name."""
    lines = [definition.rstrip(), '', '%files', '    %s %s' % (PROFILE, IN_IMAGE), '', '%post',
             '    mkdir -p ' + ' '.join(MOUNT_POINTS),
             '    chmod 644 ' + IN_IMAGE,
             '    [ ! -f %s ] || echo ". %s" >> %s' % (BASHRC, IN_IMAGE, BASHRC),
             '    cd / && python3 -Ic %s || true' % shlex.quote(HOOK_CODE)]
    if not re.search(r'^%runscript\b', definition, re.MULTILINE):
        lines += ['', '%runscript', '    ' + read_file(RUNSCRIPT).splitlines()[1]]
    return '\n'.join(lines) + '\n'


def add_layout(sandbox):
    """Give an unpacked image this layout; its own runscript stays, such as the entrypoint of a Docker image."""
    for directory in MOUNT_POINTS:
        if not os.path.lexists(sandbox + directory):
            mkdir(sandbox + directory, parents=True)
    runscript, profile, bashrc = (sandbox + path for path in ('/.singularity.d/runscript', IN_IMAGE, BASHRC))
    if is_inside(os.path.dirname(profile), sandbox):
        put(PROFILE, profile, 0o644)
        if is_inside(bashrc, sandbox) and IN_IMAGE not in read_file(bashrc):
            write_file(bashrc, '. %s\n' % IN_IMAGE, append=True)
    if not is_inside(runscript, sandbox) or NO_RUNSCRIPT in read_file(runscript):
        put(RUNSCRIPT, runscript, 0o755)


def is_inside(path, sandbox):
    """Whether a path exists and is in the image: a link in it can lead to a directory of the host."""
    return os.path.exists(path) and os.path.realpath(path).startswith(os.path.realpath(sandbox) + os.sep)


def put(file, path, mode):
    """Copy a file into the image."""
    remove_file(path)
    copy_file(file, path)
    if not build_option('extended_dry_run'):
        os.chmod(path, mode)
