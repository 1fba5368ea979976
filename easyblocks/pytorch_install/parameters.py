# SPDX-License-Identifier: GPL-2.0-only
"""
Types and allowed values of the easyconfig parameters that the PyTorch easyblocks add; checks of paths and machines.
"""
import os
import platform
import re

from easybuild.easyblocks.generic import containerimage
from easybuild.easyblocks.generic.containerimage import check_parameters, text, texts  # noqa: F401
from easybuild.framework.easyconfig import CUSTOM
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import read_file

COMMANDS = {'commands': [['python', 'python3', 'pip', 'pip3', 'torchrun'],
                         "Commands of the image that bin/ offers on the host", CUSTOM]}

# Bare keys of TOML, joined by dots.
NAME = r'[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*'

# A text for Python's string.Template.
TEMPLATE = r'([^$]|\$(\$|[A-Za-z_]|\{[A-Za-z_]\w*\}))*'


def is_source_packages(value):
    """Whether a value is a list of names with texts by the names of environment variables."""
    return isinstance(value, (list, tuple)) and all(
        isinstance(package, (list, tuple)) and len(package) == 2 and text(r'[\w.-]+')(package[0])
        and isinstance(package[1], dict) and texts(r'\w+')([*package[1]]) and texts(TEMPLATE)([*package[1].values()])
        for package in value)


def is_plain(value, nests=False):
    """Whether a value is a printable text, a boolean or a whole number; or, if it `nests`, a list or table of them."""
    if nests and isinstance(value, dict):
        return all(map(text(NAME), value)) and all(map(is_plain, value.values()))
    if nests and isinstance(value, list):
        return all(map(is_plain, value))
    return isinstance(value, int) or (isinstance(value, str) and value.isprintable())


def is_edf(value):
    """Whether a value is entries of an environment definition file that the easyblock can write, and does not set."""
    return isinstance(value, dict) and all(
        text(NAME)(name) and name.partition('.')[0] not in ('image', 'mounts') and is_plain(item, nests=True)
        for name, item in value.items())


EXPECTED = {
    **containerimage.EXPECTED,
    'base_image': (text(), "a text"),
    'cluster': (text(r'[\w.+-]+'), "the name of a cluster profile, such as 'local'"),
    'conda_activation': (text(), "a text with a command, such as 'true'"),
    # without what Lmod evaluates again when it translates Tcl (tcl2lua.tcl of 8.6: output-path-foo)
    'conflicts': (texts(r"""(?!/)[^\s"'$\[\]{}();\\`&|<>#%,]+"""), "a list of names of modules, such as ['pytorch']"),
    'debian_packages': (texts(r'[a-z0-9][a-z0-9.+-]+'), "a list of names of Debian packages"),
    'debian_release': (text('[a-z]+'), "the name of a Debian release, such as 'bookworm'"),
    'edf': (is_edf, "a dictionary of entries of the environment definition file but for image and mounts: texts, True "
                    "or False, numbers, lists or dictionaries of them, such as {'annotations': {'a.b': 'c'}}"),
    'image': (text(r'\S+'), "a text with the name of an image"),
    'machines': (texts(r'\w+'), "a list of names of machines, such as ['x86_64']"),
    'packed': (lambda value: isinstance(value, bool), "True or False"),
    'podman_options': (texts(), "a list of options of podman-hpc, such as ['--gpu']"),
    'python_version': (text(r'\d+\.\d+'), "a text with two numbers, such as '3.11'"),
    'shifter_modules': (texts(r'[^\s,]+'), "a list of names of Shifter modules, such as ['gpu']"),
    'source_packages': (is_source_packages, "a list of tuples, such as [('mpi4py', {'MPICC': '$MPI/bin/mpicc'})], "
                                             "with $$ for the character $"),
    'wheel_index': (text(r'\S+'), "a text with the address of a package index"),
}

# Characters that have a meaning in binds of Apptainer, search paths, shells or Tcl.
UNSAFE = r'''[\s,:;'"\\$`&|<>(){}\[\]*?#]'''


def check_path(path):
    """Stop if a path has a character that breaks binds, search paths or scripts."""
    found = re.search(UNSAFE, path)
    if found:
        raise EasyBuildError("The path %s has '%s' in it, which binds of containers and scripts cannot take. Choose "
                             "another --prefix or --installpath", path, found[0])


def check_machine(what, machines, remedy):
    """Stop if something is for other machines (`uname -m`) than this host; none are given for any, or unknown ones."""
    if machines and platform.machine() not in machines:
        raise EasyBuildError("%s is for %s, and this host is %s. %s", what, ' and '.join(machines),
                             platform.machine(), remedy)


def machines_of(path):
    """Machines (`uname -m`) that a lock has wheels for, from its line `# machines: x86_64 aarch64`; None without it."""
    lock = read_file(path) if os.path.exists(path) else ''
    found = re.search(r'^# machines:(.*)$', lock, re.MULTILINE)
    return found[1].split() if found else None
