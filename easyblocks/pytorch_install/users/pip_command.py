# SPDX-License-Identifier: GPL-2.0-only
"""
The command `pip` of environments.
"""
import os
import re

from easybuild.tools.filetools import adjust_permissions, read_file, write_file

# Its text, after the line with its Python.
PROGRAM = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'programs',
                       'users_pip.py')


def write_pip(directory, python):
    """Write all `pip` commands of an environment's bin/; `python` is the path of its Python when they run."""
    if len(python) > 125 or ' ' in python:
        return  # too long for the first line of a script (execve(2)): pip's own scripts start it through a shell
    for name in os.listdir(directory):
        if re.fullmatch(r'pip[0-9.]*', name):
            path = os.path.join(directory, name)
            write_file(path, '#!%s\n%s' % (python, read_file(PROGRAM)))
            adjust_permissions(path, 0o755, relative=False)
