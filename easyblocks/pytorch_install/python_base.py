# SPDX-License-Identifier: GPL-2.0-only
"""
Makes the environment of a venv module a Python of its own, a copy of the host's: virtual environments on top inherit
its packages, as they do from the base of a Python alone.
"""
import glob
import json
import os
import re
import shutil

from easybuild.easyblocks.generic.lockedvenv import run
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import build_option
from easybuild.tools.filetools import copy_dir, copy_file, mkdir, remove_file, symlink, which, write_file

from pytorch_install.access import first_unreadable, is_for_others

# Prints where a Python has its parts, and which of its compiled modules can be imported.
FACTS = """import contextlib, json, os, sys, sysconfig
modules = []
for name in os.listdir(next(path for path in sys.path if os.path.basename(path) == 'lib-dynload')):
    with contextlib.suppress(Exception):
        __import__(name.partition('.')[0])
        modules.append(name)
with open('/proc/self/maps') as maps:
    is_shared = 'libpython' in maps.read()
print(json.dumps({'executable': os.path.realpath(sys._base_executable), 'prefix': sys.base_prefix,
                  'is_shared': is_shared, 'paths': sysconfig.get_paths(), 'modules': modules}))"""

# Entries of the standard library's directory that do not belong to it, or that nobody imports.
NOT_COPIED = {'site-packages', 'dist-packages', 'EXTERNALLY-MANAGED', 'test'}

# Commands of Python itself, which the environment's own replace; packages have some that begin so too.
PYTHON = re.compile(r'python[0-9.]*|activate(\.\w+)?', re.IGNORECASE)

ACTIVATE = """# Puts the commands of this Python on PATH, unless they are there: source activate
case ":$PATH:" in *":%(bin)s:"*) ;; *) export PATH="%(bin)s:$PATH" ;; esac
type deactivate >/dev/null 2>&1 || deactivate() { unset -f deactivate; }
"""


def facts(python):
    """FACTS of a Python, as a dictionary."""
    return json.loads(run([python, '-I', '-c', FACTS], split_stderr=True).output)


def make_base(python, directory):
    """
    Turn a virtual environment into a Python of its own; EasyBuildError if that lacks modules of the host's.

    An interpreter that loads libpython gets links to the standard library: an update of the host's Python replaces both
    together. Any other is copied with its standard library, and keeps its release.

    :param python: command of the Python that the environment was made with
    """
    host = facts(python)
    version = os.path.basename(host['paths']['stdlib'])
    interpreter = os.path.join(directory, 'bin', version)
    library = os.path.join(directory, 'lib', version)
    packages = os.path.join(library, 'site-packages')
    replace_interpreter(host['executable'], directory, version)
    add_library(host, library)
    if host['prefix'] != '/usr':  # conda's interpreter looks for libraries beside itself ($ORIGIN/../lib)
        for path in glob.glob(os.path.join(glob.escape(host['prefix']), 'lib', '*.so*')):
            symlink(path, os.path.join(directory, 'lib', os.path.basename(path)))
    paths = facts(interpreter)['paths']
    if os.path.isdir(paths['include']):
        os.rmdir(paths['include'])  # empty: since Python 3.11, `python -m venv` makes it
    # distributions have other directories for the packages of a base (Debian: local/lib/python3.11/dist-packages)
    link_missing(paths['include'], host['paths']['include'])
    link_missing(paths['purelib'], packages)
    link_missing(paths['platlib'], packages)
    link_missing(paths['scripts'], os.path.dirname(interpreter))
    missing = set(host['modules']) - set(facts(interpreter)['modules'])
    if missing:
        raise EasyBuildError("%s does not work as a copy in %s: %s. Load a module of another Python",
                             host['executable'], directory, ', '.join(sorted(missing)))


def replace_interpreter(executable, directory, version):
    """Replace the links to an interpreter in a virtual environment by a copy of it, named python<version>."""
    commands = os.path.join(directory, 'bin')
    remove_file(os.path.join(directory, 'pyvenv.cfg'))
    for name in filter(PYTHON.fullmatch, os.listdir(commands)):
        remove_file(os.path.join(commands, name))
    write_file(os.path.join(commands, 'activate'), ACTIVATE % {'bin': commands})
    copy_file(executable, os.path.join(commands, version))
    for name in ('python', 'python3'):
        symlink(version, os.path.join(commands, name), use_abspath_source=False)


def add_library(host, library):
    """Link or copy the standard library of a Python (FACTS) into a directory."""
    for name in set(os.listdir(host['paths']['stdlib'])) - NOT_COPIED:
        path = os.path.join(host['paths']['stdlib'], name)
        target = os.path.join(library, name)
        if host['is_shared'] or name.startswith('config-'):
            symlink(path, target)
        elif os.path.isdir(path):
            copy_dir(path, target, ignore_dangling_symlinks=True, ignore=shutil.ignore_patterns('test', 'tests'))
        else:
            copy_file(path, target)


def link_missing(path, target):
    """Make a link at a path where there is nothing."""
    if not os.path.lexists(path):
        mkdir(os.path.dirname(path), parents=True)
        symlink(target, path)


def require_readable(python, directory):
    """Stop if others could read an environment in a directory, but not the host's Python, to whose files it links."""
    host = facts(python)
    found = first_unreadable(host['paths']['stdlib'])
    if found and (build_option('group') or is_for_others(directory)):
        others = [path for path in which(python, retain_all=True) if not first_unreadable(path)]
        raise EasyBuildError("Other users cannot read %s, which %s needs. Put another Python first on PATH: %s", found,
                             host['executable'], ', '.join(others) or "one that is installed for all users")
