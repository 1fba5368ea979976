##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
The environments' command `pip`, which after a failure prints what the constraints mean; called by the easyblocks.
"""
import glob
import os

from easybuild.tools.filetools import adjust_permissions, write_file

# pip names a constraint that cannot be met, not where it is from: the first lines of the file do.
PROGRAM = """#!%s
import os
import sys

from pip._internal.cli.main import main

status = main()
constraints = os.path.join(os.environ.get('CONTAINERROOT', ''), 'constraints.txt')
if status and 'install' in sys.argv and constraints in os.environ.get('PIP_CONSTRAINT', '').split():
    with open(constraints) as file:
        sys.stderr.writelines(line[2:] for line in file if line.startswith('# '))
sys.exit(status)
"""


def write_pip(directory, python):
    """Write each `pip` of an environment's bin/; `python` is the path of its Python where it runs."""
    for path in glob.glob(os.path.join(glob.escape(directory), 'pip*')):
        write_file(path, PROGRAM % python)
        adjust_permissions(path, 0o755, relative=False)
