# SPDX-License-Identifier: GPL-2.0-only
"""
What an installation gets from this checkout: runscripts, payload, cluster profile, and the commands of each runtime.
"""
import os
import shlex

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import install_path
from easybuild.tools.filetools import copy_dir, copy_file, mkdir, symlink, write_file

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

PROFILES = os.path.join(TREE, 'modulefiles', 'cluster')

# Directories that go into every installation; the module has a variable for each.
PARTS = ('runscripts', 'payload')

# Runscripts that bin/ offers. Those of the second list run on the host alone.
RUNSCRIPTS = ('conda-python-simple', 'conda-python-distributed', 'torchrun-distributed', 'ddp-env', 'get-master',
              'list-packages', 'torchrun', 'uv')
RUNSCRIPTS_ON_HOST = ('pytorch-doctor', 'pytorch-run', 'pytorch-stacks', 'pytorch-stage')

# Files of bin/ that users type, by what starts the image; all runtimes have the first.
ON_HOST = {'': ['install-kernel'], 'apptainer': ['install-kernel', 'check-image', 'make-squashfs']}
ENROOT_RC = os.path.join(TREE, 'libexec', 'enroot.rc')


def bin_links(engine, of_image=()):
    """
    Links in bin/: their names, and their targets relative to bin/.

    :param engine: what starts the image, or mounts the packed venv, in libexec/enter; empty without either
    :param of_image: commands of the image, or of the packed venv, that bin/ offers on the host
    """
    links = {name: os.path.join(os.pardir, 'runscripts', name) for name in RUNSCRIPTS + RUNSCRIPTS_ON_HOST}
    # not for users: Jupyter kernels of earlier installations run this path
    links['start-kernel.bash'] = os.path.join(os.pardir, 'libexec', 'start-kernel.bash')
    if engine == 'apptainer':
        links['unmake-squashfs'] = 'make-squashfs'
    if engine:
        # the runscripts of a packed venv enter it by themselves
        entering = of_image if engine == 'packed' else [*RUNSCRIPTS, *of_image, 'start-shell']
        links.update(dict.fromkeys(entering, os.path.join(os.pardir, 'libexec', 'enter')))
    return links


def install_parts(installdir):
    """Install runscripts and payload, without bytecode of this checkout's Python."""
    for part in PARTS:
        copy_dir(os.path.join(TREE, part), os.path.join(installdir, part),
                 ignore=lambda _, names: [name for name in names if name == '__pycache__'])


def find_profile(name):
    """Path of a cluster profile, of this tree or on MODULEPATH, without those of installations, which are copies."""
    others = [path for path in os.environ.get('MODULEPATH', '').split(os.pathsep)
              if not path.startswith(install_path('software'))]
    for directory in (PROFILES, *(os.path.join(path, 'cluster') for path in others if path)):
        for file in (name, name + '.lua'):
            if os.path.isfile(os.path.join(directory, file)):
                return os.path.join(directory, file)
    own = ', '.join(sorted(file for file in os.listdir(PROFILES) if file[0] != '.'))
    raise EasyBuildError("Cluster profile not found: cluster/%s in %s and on MODULEPATH. Set 'cluster' in the recipe "
                         "to one of: %s; or run `module use` for the directory of your own", name,
                         os.path.dirname(PROFILES), own)


def install_profile(path, installdir):
    """Install a cluster profile, and the file that profiles source."""
    for file in (path, os.path.join(PROFILES, '.policy.tcl')):
        copy_file(file, os.path.join(installdir, 'modulefiles', 'cluster', os.path.basename(file)))


def install_commands(engine, of_image, installdir, values=None):
    """
    Install bin/ and libexec/.

    :param values: variables of libexec/enter, texts or lists, with which the commands start without the module
    """
    internal = ['command.bash', 'start-kernel.bash', 'kernelspec.py', *(['enter'] if engine else []),
                *(['enroot.rc'] if engine == 'enroot' else [])]
    for directory, names in (('bin', ON_HOST.get(engine, ON_HOST[''])), ('libexec', internal)):
        mkdir(os.path.join(installdir, directory))
        for name in names:
            copy_file(os.path.join(TREE, directory, name), os.path.join(installdir, directory, name))
    for name, target in sorted(bin_links(engine, of_image).items()):
        symlink(target, os.path.join(installdir, 'bin', name), use_abspath_source=False)
    if engine:
        lines = ['%s=%s\n' % (name, quoted(value))
                 for name, value in [('engine', engine), *sorted((values or {}).items())]]
        write_file(os.path.join(installdir, 'libexec', 'installation.bash'), ''.join(lines))


def quoted(value):
    """A text or a list in bash's syntax."""
    if isinstance(value, (list, tuple)):
        return '(%s)' % ' '.join(map(quoted, value))
    return shlex.quote(value or '')
