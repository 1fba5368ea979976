# SPDX-License-Identifier: GPL-2.0-only
"""
Checks before the first step, for what would make a late step fail.
"""
import os
import platform
import re

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.environment import restore_env_vars

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
    with open(path, encoding='utf-8', errors='replace') as file:
        found = re.search(r'^# machines:(.*)$', file.read(), re.MULTILINE)
    return found[1].split() if found else None


def check_profile(profiles, name, modules_tool):
    """Stop if the module system cannot read a cluster profile; `eb --fetch` runs without a module system."""
    if not modules_tool.version:
        return
    modulepath = {'MODULEPATH': os.environ.get('MODULEPATH', '')}
    os.environ['MODULEPATH'] = os.path.dirname(profiles)
    try:
        modules_tool.run_module('show', 'cluster/' + name, return_stderr=True)
    except EasyBuildError as error:
        # the message of Lmod, or of Environment Modules after `ERROR: `, without the text around it
        reason = ' '.join((str(error).partition('stderr: ')[2].partition('; stdout: ')[0] or str(error)).split())
        reason = reason.rpartition('ERROR: ')[2].partition(' While processing the following module')[0].strip(' -)')
        raise EasyBuildError("The cluster profile %s cannot be loaded: %s", os.path.join(profiles, name),
                             reason) from error
    finally:
        restore_env_vars(modulepath)
