# SPDX-License-Identifier: BSD-3-Clause
"""
Runs at the start of each pip whose Python sees the module's torch, by a line in a .pth file: adds pip's own options.

It is independent of the pip that runs: the module's, an upgraded one, that of an environment on top. In an environment,
it also lets pip upgrade and remove what `pip install --user` installed, which pip takes for packages of the system
(https://github.com/pypa/pip/issues/5176). Python 3.8 or newer.
"""
import os
import re
import site
import sys
import sysconfig
from importlib.machinery import PathFinder

HELD = os.path.dirname(__file__)
CONSTRAINTS = os.path.join(os.path.dirname(HELD), 'constraints.txt')

# Commands of pip; all but the last take constraints.
COMMANDS = ['install', 'download', 'wheel', 'lock', 'uninstall']


def is_for_another():
    """Whether this pip only starts itself with another Python, which then decides."""
    return re.search(r'--python(?!-)', ' '.join(sys.argv)) and '_PIP_RUNNING_IN_SUBPROCESS' not in os.environ


def sees_module():
    """Whether this Python imports the module's torch."""
    found = PathFinder.find_spec('torch')
    if not found:  # in users' environment, the line runs before Python adds the image's own directories, with pip
        sys.path.extend(site.getsitepackages([sys.base_prefix]))
        found = PathFinder.find_spec('torch')
    with open(HELD + '/packages') as file:
        packages = os.path.realpath(file.read())
    return found and os.path.realpath(found.origin).startswith(packages + os.sep)


def add_options(position):
    """Add the options to sys.argv: unlike variables, they add to the user's own and to those of pip.conf."""
    import pip

    options = ['--constraint', CONSTRAINTS]
    # where the module itself is installed, the wheel without modules would replace its torch
    if sys.prefix != sys.base_prefix or '--force-reinstall' not in sys.argv:
        options += ['--find-links', HELD]
    if list(map(int, re.findall(r'\d+', pip.__version__))) >= [25, 3]:
        options += ['--build-constraint', CONSTRAINTS]
    sys.argv[position:position] = options


def change_removal():
    """Let pip remove what is in PYTHONUSERBASE, and end with an error where it could change nothing."""
    from pip._internal.exceptions import InstallationError
    from pip._internal.metadata import base
    from pip._internal.req.req_uninstall import UninstallPathSet

    is_local = base.is_local
    is_permitted = UninstallPathSet._permitted
    user_base = os.path.realpath(site.getuserbase()) + os.sep

    def is_users(path):
        return os.path.realpath(os.path.dirname(path)).startswith(user_base)

    def permitted(paths, path):
        if not os.access(os.path.dirname(path), os.W_OK):
            raise InstallationError('cannot remove %s: it is read-only. If user-software is packed, run '
                                    'unmake-squashfs on the host first' % path)
        return is_permitted(paths, path) or is_users(path)

    base.is_local = lambda path: is_local(path) or is_users(path)
    UninstallPathSet._permitted = permitted


def start(command):
    """Add the options of a command; in an environment, permit what pip's own checks would not."""
    if command != 'uninstall':
        add_options(sys.argv.index(command) + 1)
    # not for the environment's own packages: others and jobs import what is in PYTHONUSERBASE
    is_for_user = '--user' in sys.argv or not os.access(sysconfig.get_path('purelib'), os.W_OK)
    if sys.prefix != sys.base_prefix and (command == 'uninstall' or is_for_user):
        change_removal()


commands = [word for word in sys.argv if word in COMMANDS]
if commands and not is_for_another() and sees_module():
    start(commands[0])
