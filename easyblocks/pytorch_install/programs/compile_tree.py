##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Compiles runscripts and payload below a directory, its argument: ranks cannot write bytecode there.
"""
import os
import sys
from compileall import compile_dir
from py_compile import PycInvalidationMode
from zipfile import PyZipFile

# Whether Python compares bytecode with its source: users copy the payload and edit it.
LIBRARIES = {'runscripts/pytorch_launch': PycInvalidationMode.UNCHECKED_HASH,
             'runscripts/pytorch_doctor': PycInvalidationMode.UNCHECKED_HASH,
             'payload/training': PycInvalidationMode.CHECKED_HASH}

# Every rank imports this package from a shared file system: a file of a package costs four calls, an archive two.
PACKED = 'runscripts/pytorch_launch'


def compile_tree(root):
    """Compile the libraries, and pack PACKED into the archive that its `__main__` looks for."""
    for library, mode in LIBRARIES.items():
        if not compile_dir(os.path.join(root, library), quiet=1, invalidation_mode=mode):
            sys.exit(1)
    directory, package = os.path.split(os.path.join(root, PACKED))
    cache = os.path.join(directory, '__pycache__')
    os.makedirs(cache, exist_ok=True)
    # a Python of another version does not find it, and imports the package
    name = '%s.%s.zip' % (package, sys.implementation.cache_tag)
    with PyZipFile(os.path.join(cache, name), 'w') as archive:
        archive.writepy(os.path.join(directory, package))


if __name__ == '__main__':
    compile_tree(sys.argv[1])
