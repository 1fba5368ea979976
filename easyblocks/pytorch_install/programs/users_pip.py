# SPDX-License-Identifier: BSD-3-Clause
"""
Runs pip, and lets it upgrade and remove what `pip install --user` installed: bin/pip of an environment, for users.

By itself, pip takes the user's packages for packages outside of a virtual environment: `pip uninstall` leaves them, and
an upgrade leaves the old version's record (https://github.com/pypa/pip/issues/5176). Python 3.8 or newer.
"""
import os
import site
import sys

from pip._internal.cli.main import main


def include_user_packages():
    """Let pip treat the user's packages as part of the environment."""
    try:
        from pip._internal.metadata import base
        from pip._internal.req.req_uninstall import UninstallPathSet

        is_local, is_permitted = base.is_local, UninstallPathSet._permitted
    except (ImportError, AttributeError):  # another version of pip: as it is by itself
        return
    user_base = os.path.realpath(site.getuserbase()) + os.sep

    def is_users(path):
        directory, name = os.path.split(path)
        return os.path.join(os.path.realpath(directory), name).startswith(user_base)

    base.is_local = lambda path: is_local(path) or is_users(path)
    UninstallPathSet._permitted = lambda paths, path: is_permitted(paths, path) or is_users(path)


def explain_constraints():
    """Print what the module's constraints mean: pip names one that cannot be met, not where it is from."""
    constraints = os.path.join(os.environ.get('CONTAINERROOT', ''), 'constraints.txt')
    if 'install' in sys.argv and constraints in os.environ.get('PIP_CONSTRAINT', '').split():
        with open(constraints) as file:
            sys.stderr.writelines(line[2:] for line in file if line.startswith('# '))


if __name__ == '__main__':
    if {'install', 'uninstall'} & set(sys.argv):  # the others start faster without
        include_user_packages()
    status = main()
    if status:
        explain_constraints()
    sys.exit(status)
