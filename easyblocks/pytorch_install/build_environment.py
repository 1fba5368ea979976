# SPDX-License-Identifier: GPL-2.0-only
"""The record of a build: Python, modules and system, as a file in the installation."""
import os
import platform

from easybuild.easyblocks.generic.containerimage import run_command

# The file, relative to the installation directory.
RECORD = os.path.join('provenance', 'build.json')

# Prefixes of modules that only the installation needs.
INSTALLERS_MODULES = ('pytorch-easybuild', 'easybuild', 'cluster/')


def record_build(python, modules):
    """The record, as a dictionary; `python` makes the environment, and `modules` are those of `modules_of_build`."""
    # a virtual environment links to the base Python of the one that makes it
    code = "import platform, sys; print(sys._base_executable); print(platform.python_version())"
    path, version = run_command([python, '-c', code], hidden=True).output.split()
    return {'system': platform.platform(), 'python': {'path': path, 'version': version}, 'modules': modules}


def modules_of_build(name, before, during, dependencies, build_dependencies):
    """
    Modules to use the software with, as lists in the order of loading.

    'required' are those that the recipe names and those that the user loaded. 'brought' are those that these loaded;
    a login's default version of one is replaced, as during the build.

    :param before: environment variables that `eb` was started with
    :param during: environment variables of the build, with the recipe's dependencies loaded
    :param dependencies: names of the recipe's modules, with or without versions
    :param build_dependencies: those among them that only the build needs
    """
    def is_among(module, names):
        return module in names or os.path.dirname(module) in names

    # loaded at every login (lmod.readthedocs.io, "Providing A Standard Set Of Modules for all Users")
    of_login = before.get('LMOD_SYSTEM_DEFAULT_MODULES', '').split(':')
    modules = {'required': [], 'brought': []}
    for module in during.get('LOADEDMODULES', '').split(':'):
        if not module or module.lower().startswith(INSTALLERS_MODULES + (name.lower() + '/',)):
            continue
        if is_among(module, dependencies):
            modules['required'].append(module)
        elif not is_among(module, [*build_dependencies, *of_login]):
            of_user = module in before.get('LOADEDMODULES', '').split(':')
            modules['required' if of_user else 'brought'].append(module)
    return modules
