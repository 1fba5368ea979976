# SPDX-License-Identifier: GPL-2.0-only
"""
Types and allowed values of the easyconfig parameters that the PyTorch easyblocks add; checks of paths and machines.
"""
import os
import platform
import re

from easybuild.easyblocks.generic import containerimage
from easybuild.easyblocks.generic.containerimage import check_parameters, text, texts  # noqa: F401
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import read_file

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


# For each parameter its default, a test of other values, and its help.
EXPECTED = {
    **containerimage.EXPECTED,
    'base_image': [None, text(), "the base image of cotainr's environment: a .sif file, or docker:// with digest"],
    'cluster': ['local', text(r'[\w.+-]+'), "the name of a cluster profile, a module cluster/<name>, that sets fabric "
                                            "and Slurm policy"],
    'commands': [['python', 'python3', 'pip', 'pip3', 'torchrun'], *containerimage.EXPECTED['commands'][1:]],
    'conda_activation': ['true', text(), "a text with the command that activates the image's conda environment, unless "
                                         "the image sets WITH_CONDA"],
    # NERSC's module has the default's name. Without what Lmod evaluates again when it translates Tcl (tcl2lua.tcl of
    # 8.6: output-path-foo).
    'conflicts': [['pytorch'], texts(r"""(?!/)[^\s"'$\[\]{}();\\`&|<>#%,]+"""),
                  "a list of modules that cannot be loaded beside this one, besides other versions"],
    'debian_packages': [[], texts(r'[a-z0-9][a-z0-9.+-]+'), "a list of Debian packages in that base image"],
    'debian_release': [None, text('[a-z]+'), "the Debian release of the definition file's base image"],
    'edf': [{}, is_edf, "a dictionary of entries of the environment definition file but for image and mounts: "
                        "texts, True or False, numbers, lists or dictionaries of them"],
    'image': [None, text(r'\S+'), "the name of the image, as the program that starts it needs it"],
    'machines': [[], texts(r'\w+'), "a list of machines (`uname -m`) that the runtime is for, such as ['x86_64']; by "
                                    "default, those of the lock, or any"],
    'packed': [False, lambda value: value is True, "True to install the venv as one squashfs file too, which the "
                                                   "commands mount in its place"],
    'podman_options': [[], texts(), "a list of options of `podman-hpc run` for every start, such as ['--gpu']"],
    'python_version': ['3.11', text(r'\d+\.\d+'), "a text with Python's version (<major>.<minor>), which locked wheels "
                                                  "must fit"],
    'shifter_modules': [[], texts(r'[^\s,]+'), "a list of Shifter's own modules for this image, instead of the site's "
                                               "default"],
    'source_packages': [[], is_source_packages, "a list of packages to build from sdists among the sources: tuples of "
                        "name and environment, such as ('mpi4py', {'MPICC': '$MPI/bin/mpicc'}), with $$ for $"],
    'wheel_index': [None, text(r'\S+'), "the address of a package index to ask after those of pip's own configuration"],
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
