# SPDX-License-Identifier: BSD-3-Clause
"""
Compiles runscripts and payload below a directory, its argument: ranks cannot write bytecode there.

The runtime's Python reads it from its standard input: Python 3.8, standard library alone.
"""
import os
import sys
from compileall import compile_dir
from py_compile import PycInvalidationMode

LIBRARIES = ['runscripts/pytorch_launch', 'runscripts/pytorch_doctor', 'runscripts/pytorch_stacks', 'payload/training']


def compile_tree(root):
    """Compile the libraries; an edit takes effect, as Python compares the time and size of the source."""
    for library in LIBRARIES:
        path = os.path.join(root, library)
        if not compile_dir(path, quiet=1, invalidation_mode=PycInvalidationMode.TIMESTAMP):
            sys.exit(1)


if __name__ == '__main__':
    compile_tree(sys.argv[1])
