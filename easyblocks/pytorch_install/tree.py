# SPDX-License-Identifier: GPL-2.0-only
"""
What an installation gets from this checkout: runscripts, payload, cluster profile, and the commands of each runtime.
"""
import os
import shlex
from typing import NamedTuple, Tuple

from easybuild.tools.filetools import copy_dir, copy_file, mkdir, symlink, write_file

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

PROFILES = os.path.join(TREE, 'modulefiles', 'cluster')

# Directories that go into every installation; the module has a variable for each.
PARTS = ('runscripts', 'payload')

# Runscripts that bin/ offers. Those of the second list run on the host alone.
RUNSCRIPTS = ('conda-python-simple', 'conda-python-distributed', 'torchrun-distributed', 'ddp-env', 'get-master',
              'list-packages', 'uv')
RUNSCRIPTS_ON_HOST = ('pytorch-doctor', 'pytorch-run', 'pytorch-stacks', 'pytorch-stage')


class Commands(NamedTuple):
    """
    Commands of one kind of runtime.

    on_host: files of this checkout's bin/ that users type
    internal: files of its libexec/ that commands run
    engine: what starts the image, or mounts the packed venv, in libexec/enter; empty without either
    """

    on_host: Tuple[str, ...]
    internal: Tuple[str, ...]
    engine: str = ''


VENV = Commands(('install-kernel',), ('command.bash', 'start-kernel.bash', 'kernelspec.py'))
ENTERED = (*VENV.internal, 'enter')
# the runscripts enter by themselves
PACKED_VENV = Commands(VENV.on_host, ENTERED, 'packed')
SHIFTER = Commands(VENV.on_host, ENTERED, 'shifter')
PODMAN_HPC = Commands(VENV.on_host, ENTERED, 'podman-hpc')
ENROOT = Commands(VENV.on_host, (*ENTERED, 'enroot.rc'), 'enroot')
ENROOT_RC = os.path.join(TREE, 'libexec', 'enroot.rc')
CONTAINER_ENGINE = Commands(VENV.on_host, ENTERED, 'container-engine')
CONTAINER = Commands((*VENV.on_host, 'check-image', 'make-squashfs'), ENTERED, 'apptainer')


def bin_links(commands, of_image=()):
    """
    Links in bin/: their names, and their targets relative to bin/.

    :param commands: Commands of the runtime
    :param of_image: commands of the image, or of the packed venv, that bin/ offers on the host
    """
    links = {name: os.path.join(os.pardir, 'runscripts', name) for name in RUNSCRIPTS + RUNSCRIPTS_ON_HOST}
    # not for users: Jupyter kernels of earlier installations run this path
    links['start-kernel.bash'] = os.path.join(os.pardir, 'libexec', 'start-kernel.bash')
    if 'make-squashfs' in commands.on_host:
        links['unmake-squashfs'] = 'make-squashfs'
    if commands.engine:
        entering = of_image if commands.engine == PACKED_VENV.engine else [*RUNSCRIPTS, *of_image, 'start-shell']
        links.update(dict.fromkeys(entering, os.path.join(os.pardir, 'libexec', 'enter')))
    return links


def user_commands(commands, of_image=()):
    """Commands for users: names in bin/ without a version or a file name extension."""
    return sorted(name for name in [*bin_links(commands, of_image), *commands.on_host] if '.' not in name)


def install_parts(installdir):
    """Install runscripts and payload, without bytecode of this checkout's Python."""
    for part in PARTS:
        copy_dir(os.path.join(TREE, part), os.path.join(installdir, part),
                 ignore=lambda _, names: [name for name in names if name == '__pycache__'])


def install_profile(name, installdir):
    """Install a cluster profile, and the file that profiles source."""
    for file in (name, '.policy.tcl'):
        copy_file(os.path.join(PROFILES, file), os.path.join(installdir, 'modulefiles', 'cluster', file))


def install_commands(commands, of_image, installdir, values=None):
    """
    Install bin/ and libexec/.

    :param values: variables of libexec/enter, texts or lists, with which the commands start without the module
    """
    for directory, names in (('bin', commands.on_host), ('libexec', commands.internal)):
        mkdir(os.path.join(installdir, directory))
        for name in names:
            copy_file(os.path.join(TREE, directory, name), os.path.join(installdir, directory, name))
    for name, target in sorted(bin_links(commands, of_image).items()):
        symlink(target, os.path.join(installdir, 'bin', name), use_abspath_source=False)
    if commands.engine:
        lines = ['%s=%s\n' % (name, quoted(value))
                 for name, value in [('engine', commands.engine), *sorted((values or {}).items())]]
        write_file(os.path.join(installdir, 'libexec', 'installation.bash'), ''.join(lines))


def quoted(value):
    """A text or a list in bash's syntax."""
    if isinstance(value, (list, tuple)):
        return '(%s)' % ' '.join(map(quoted, value))
    return shlex.quote(value or '')
