##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Compiles runscripts and payload below a directory, its argument, as ranks may not write there.

The runtime's Python reads it from its standard input, called by pytorchmodule.py: Python 3.8, standard library alone.
"""
import os
import sys
from compileall import compile_dir
from py_compile import PycInvalidationMode
from zipfile import PyZipFile

# Whether bytecode is checked against its source: users copy the payload and edit it.
LIBRARIES = {'runscripts/pytorch_launch': PycInvalidationMode.UNCHECKED_HASH,
             'runscripts/pytorch_doctor': PycInvalidationMode.UNCHECKED_HASH,
             'payload/training': PycInvalidationMode.CHECKED_HASH}

# Every rank imports it from a shared file system, where each file of a package costs four calls and an archive two.
PACKED = 'runscripts/pytorch_launch'


def compile_tree(root):
    """Compile the libraries, and pack what every rank imports to where its `__main__` looks for it."""
    for library, mode in LIBRARIES.items():
        if not compile_dir(os.path.join(root, library), quiet=1, invalidation_mode=mode):
            sys.exit(1)
    directory, package = os.path.split(os.path.join(root, PACKED))
    cache = os.path.join(directory, '__pycache__')
    os.makedirs(cache, exist_ok=True)
    # another Python does not find it, and imports the package
    name = '%s.%s.zip' % (package, sys.implementation.cache_tag)
    with PyZipFile(os.path.join(cache, name), 'w') as archive:
        archive.writepy(os.path.join(directory, package))


if __name__ == '__main__':
    compile_tree(sys.argv[1])
