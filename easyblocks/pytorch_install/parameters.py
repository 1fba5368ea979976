# SPDX-License-Identifier: GPL-2.0-only
"""
Types and allowed values of the easyconfig parameters that the PyTorch easyblocks add; checks of paths and machines.
"""
import os
import platform
import re

from easybuild.easyblocks.generic import containerimage
from easybuild.easyblocks.generic.containerimage import Parameter, check_parameters, each_matches, matches
from easybuild.tools.build_log import EasyBuildError

# Bare keys of TOML, joined by dots, but for those that the easyblock sets.
EDF_NAME = r'(?!(image|mounts)(\.|$))[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*'

# A text for Python's string.Template.
TEMPLATE = r'([^$]|\$(\$|[A-Za-z_]|\{[A-Za-z_]\w*\}))*'


# A login in an address: https://user:password@host; not the digest of an image.
LOGIN = r'://[^/\s@]+@(?!sha256:)'


def is_source_package(value):
    """Whether a value is a name with texts by the names of environment variables."""
    if not (isinstance(value, (list, tuple)) and len(value) == 2):
        return False
    name, environment = value
    if not (matches(r'[\w.-]+')(name) and isinstance(environment, dict)):
        return False
    return each_matches(r'\w+')([*environment]) and each_matches(TEMPLATE)([*environment.values()])


def is_list_of_source_packages(value):
    """Whether a value is a list of such packages."""
    return isinstance(value, (list, tuple)) and all(map(is_source_package, value))


def is_edf(value):
    """Whether a value is entries of an environment definition file that the easyblock does not set."""
    return isinstance(value, dict) and all(map(matches(EDF_NAME), value))


EXPECTED = {
    **containerimage.PARAMETERS,
    'base_image': Parameter(None, matches(), "the base image of cotainr's environment: a .sif file, or docker:// with "
                            "digest"),
    'central_images': Parameter([], each_matches('/.*'), "a list of directories of the site with images, such as "
                                "['/appl/images']"),
    'cluster': Parameter('local', matches(r'[\w.+-]+'), "the name of a cluster profile, a module cluster/<name>, that "
                         "sets fabric and Slurm policy"),
    'commands': containerimage.PARAMETERS['commands']._replace(
        default=['python', 'python3', 'pip', 'pip3', 'torchrun']),
    'conda_activation': Parameter('true', matches(), "a text with the command that activates the image's conda "
                                  "environment, unless the image sets WITH_CONDA"),
    # NERSC's module has the default's name. Without what Lmod evaluates again when it translates Tcl (tcl2lua.tcl of
    # 8.6: output-path-foo).
    'conflicts': Parameter(['pytorch'], each_matches(r"""(?!/)[^\s"'$\[\]{}();\\`&|<>#%,]+"""), "a list of modules "
                           "that cannot be loaded beside this one, besides other versions"),
    'debian_packages': Parameter([], each_matches(r'[a-z0-9][a-z0-9.+-]+'), "a list of Debian packages in that base "
                                 "image"),
    'debian_release': Parameter(None, matches('[a-z]+'), "the Debian release of the definition file's base image"),
    'edf': Parameter({}, is_edf, "a dictionary of entries of the environment definition file but for image and "
                     "mounts: texts, True or False, numbers, lists or dictionaries of them"),
    'image': Parameter(None, matches(r'\S+'), "the name of the image, as the program that starts it needs it"),
    'machines': Parameter([], each_matches(r'\w+'), "a list of machines (`uname -m`) that the runtime is for, such as "
                          "['x86_64']; by default any"),
    'packed': Parameter(False, lambda value: value is True, "True to install the venv as one squashfs file too, which "
                        "the commands mount in its place"),
    'podman_options': Parameter([], each_matches(), "a list of options of `podman-hpc run` for every start, such as "
                                "['--gpu']"),
    'python_version': Parameter('3.11', matches(r'\d+\.\d+'), "a text with Python's version (<major>.<minor>), which "
                                "locked wheels must fit"),
    'shifter_modules': Parameter([], each_matches(r'[^\s,]+'), "a list of Shifter's own modules for this image, "
                                 "instead of the site's default"),
    'source_packages': Parameter([], is_list_of_source_packages, "a list of packages to build from sdists among the "
                                 "sources: tuples of name and environment, such as ('mpi4py', {'MPICC': "
                                 "'$MPI/bin/mpicc'}), with $$ for $"),
    'wheel_index': Parameter(None, matches(r'\S+'), "the address of a package index to ask after those of pip's own "
                             "configuration"),
}


def check_recipe(recipe):
    """Stop if a parameter has a value that is not allowed, or a login, which the module would show to all users."""
    for name in (*EXPECTED, 'sources'):
        if re.search(LOGIN, str(recipe.get(name))):
            raise EasyBuildError("%s: %s has a login in an address, and all users can read recipe and module. Remove "
                                 "it: pip takes logins from ~/.netrc, other programs from their own configuration",
                                 os.path.basename(recipe.path), name)
    check_parameters(recipe, EXPECTED)


# Characters that have a meaning in binds of Apptainer, search paths, shells or Tcl.
UNSAFE = r'''[\s,:;'"\\$`&|<>(){}\[\]*?#%]'''


def check_path(path):
    """Stop if a path has a character that breaks binds, search paths or scripts."""
    found = re.search(UNSAFE, path)
    if found:
        raise EasyBuildError("The path %s has '%s' in it, which binds of containers and scripts cannot take. Choose "
                             "another --prefix or --installpath", path, found[0])


def check_machine(recipe, machines):
    """Stop if a recipe is for other machines (`uname -m`) than this host; none are given for any."""
    if machines and platform.machine() not in machines:
        raise EasyBuildError("%s is for %s, and this host is %s. Install it on such a host, or choose another recipe",
                             recipe, ' and '.join(machines), platform.machine())
