# SPDX-License-Identifier: GPL-2.0-only
"""
Python environments of locked wheels, installed offline, and turned into a base that other environments are made on.

A virtual environment inherits from the base of its Python, never from another virtual environment (CPython issue
129445). So the environment of a module is a base: a copy of the host's interpreter with its standard library beside it.
"""
import glob
import json
import os
import shutil

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import copy_file, mkdir, remove_file, symlink, write_file

from pytorch_install.runtime import PROGRAMS, run_command

# pip without configuration and offline; also for the pip that a build starts.
OFFLINE = {'PIP_CONFIG_FILE': os.devnull, 'PIP_NO_INDEX': '1'}

# Where a Python has its parts, and its compiled modules that import.
FACTS = """import importlib, json, os, sys, sysconfig
directory = next(path for path in sys.path if os.path.basename(path) == 'lib-dynload')
names, modules = {name.partition('.')[0] for name in os.listdir(directory)}, []
for name in sorted(names):
    try:
        importlib.import_module(name)
        modules.append(name)
    except Exception:
        pass
with open('/proc/self/maps') as maps:
    is_shared = 'libpython' in maps.read()
print(json.dumps({'executable': os.path.realpath(sys._base_executable), 'prefix': sys.prefix, 'is_shared': is_shared,
                  'base': sys.base_prefix, 'paths': sysconfig.get_paths(), 'modules': modules, 'search': sys.path}))"""

# Entries of the standard library's directory that do not belong to it, or that users do not import.
NOT_COPIED = ['site-packages', 'dist-packages', 'EXTERNALLY-MANAGED', 'test']

ACTIVATE = """# Puts the commands of this Python on PATH, unless they are there: source activate
case ":$PATH:" in *":%(bin)s:"*) ;; *) export PATH="%(bin)s:$PATH" ;; esac
"""


def make_environment(python, directory, wheels, compiles=True):
    """
    Make a virtual environment and install locked wheels into it.

    :param python: command of the Python to make it with
    :param wheels: the Wheels
    :param compiles: whether pip writes bytecode
    """
    run_command([python, '-m', 'venv', directory])
    # without the user's pip configuration; what the venv was seeded with is replaced, not overwritten
    run_command([os.path.join(directory, 'bin', 'pip'), '--isolated', 'install', '--quiet', '--no-index',
                 '--find-links', wheels.directory, '--require-hashes', '--no-deps',
                 *([] if compiles else ['--no-compile']), '-r', wheels.requirements], OFFLINE)


def make_base(python, directory):
    """
    Turn a virtual environment into a Python of its own; EasyBuildError if that lacks modules of the host's.

    An interpreter that loads libpython gets links to the standard library: an update of the host's Python replaces both
    together. Any other is copied with its standard library, and keeps its release.

    :param python: command of the Python that the environment was made with
    """
    host = facts(python)
    if host is None:  # a dry run
        return
    remove_file(os.path.join(directory, 'pyvenv.cfg'))
    for path in glob.glob(os.path.join(glob.escape(directory), 'bin', '[aA]ctivate*')):
        remove_file(path)
    commands = os.path.join(directory, 'bin')
    write_file(os.path.join(commands, 'activate'), ACTIVATE % {'bin': commands})
    for name in [name for name in os.listdir(commands) if name.startswith('python')]:
        remove_file(os.path.join(commands, name))
    version = os.path.basename(host['paths']['stdlib'])
    copy_file(host['executable'], os.path.join(commands, version))
    for name in ('python', 'python3'):
        os.symlink(version, os.path.join(commands, name))
    add_library(host, directory, os.path.join(directory, 'lib', version))
    base = facts(os.path.join(commands, 'python'))
    packages = os.path.join(directory, 'lib', version, 'site-packages')
    # distributions have other directories for the packages of a base (Debian: local/lib/python3/dist-packages)
    for kind, own in (('purelib', packages), ('platlib', packages), ('scripts', commands)):
        if not os.path.lexists(base['paths'][kind]):
            mkdir(os.path.dirname(base['paths'][kind]), parents=True)
            os.symlink(os.path.relpath(own, os.path.dirname(base['paths'][kind])), base['paths'][kind])
    base = facts(os.path.join(commands, 'python'))
    missing = sorted(set(host['modules']) - set(base['modules']))
    if missing or not any(os.path.realpath(path) == os.path.realpath(packages) for path in base['search']):
        raise EasyBuildError("%s does not work as a copy in %s: %s. Load a module of another Python",
                             host['executable'], directory, ', '.join(missing) or "it does not search site-packages")


def add_library(host, directory, library):
    """Link or copy the host's standard library, headers and shared libraries of a prefix into the environment."""
    for name in sorted(set(os.listdir(host['paths']['stdlib'])) - set(NOT_COPIED)):
        path, target = os.path.join(host['paths']['stdlib'], name), os.path.join(library, name)
        if host['is_shared'] or name.startswith('config-'):
            os.symlink(path, target)
        elif os.path.isdir(path):
            shutil.copytree(path, target, ignore_dangling_symlinks=True, ignore=shutil.ignore_patterns('test', 'tests'))
        else:
            shutil.copy2(path, target)
    if host['base'] != '/usr':  # conda's interpreter looks for libraries beside itself ($ORIGIN/../lib)
        for path in glob.glob(os.path.join(glob.escape(host['base']), 'lib', '*.so*')):
            os.symlink(path, os.path.join(directory, 'lib', os.path.basename(path)))
    headers = os.path.join(directory, 'include', os.path.basename(host['paths']['include']))
    if not os.path.lexists(headers):
        mkdir(os.path.dirname(headers), parents=True)
        symlink(host['paths']['include'], headers)


def keep_torch(python):
    """Install what lets the module's torch precede the torch of a user's site directory."""
    packages = facts(python)
    if packages:
        copy_file(os.path.join(PROGRAMS, 'keep_torch.py'), os.path.join(packages['paths']['purelib'], 'keep_torch.py'))
        write_file(os.path.join(packages['paths']['purelib'], 'keep_torch.pth'), 'import keep_torch\n')


def facts(python):
    """FACTS of a Python, as a dictionary; None in a dry run."""
    output = run_command([python, '-I', '-c', FACTS], hidden=True, split_stderr=True).output
    return json.loads(output) if output else None
