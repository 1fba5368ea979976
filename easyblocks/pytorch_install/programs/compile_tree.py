# SPDX-License-Identifier: BSD-3-Clause
"""
Compiles runscripts and payload below a directory, its argument: ranks cannot write bytecode there.

The runtime's Python reads it from its standard input: Python 3.8, standard library alone.
"""
import marshal
import os
import sys
from compileall import compile_dir
from importlib.util import MAGIC_NUMBER
from py_compile import PycInvalidationMode

LIBRARIES = ['runscripts/pytorch_launch', 'runscripts/pytorch_doctor', 'runscripts/pytorch_stacks', 'payload/training']

# Every rank imports it from a shared file system: as one file, which its __main__.py reads.
PACKED = 'runscripts/pytorch_launch'


def compile_tree(root):
    """Compile the libraries, where bytecode is checked so that edits take effect, and pack what ranks import."""
    for library in LIBRARIES:
        path = os.path.join(root, library)
        if not compile_dir(path, quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH):
            sys.exit(1)
    directory, package = os.path.split(os.path.join(root, PACKED))
    cache = os.path.join(directory, '__pycache__')
    os.makedirs(cache, exist_ok=True)
    # another Python does not find it, or finds another magic number, and imports the package
    name = '%s.%s.marshal' % (package, sys.implementation.cache_tag)
    with open(os.path.join(cache, name), 'wb') as packed:
        packed.write(MAGIC_NUMBER + marshal.dumps(dict(compiled_modules(directory, package))))


def compiled_modules(directory, package):
    """For each module of a package its name, and (file, whether it is a package, time and size of the file, code)."""
    for parent, _, files in os.walk(os.path.join(directory, package)):
        for path in [os.path.join(parent, file) for file in files if file.endswith('.py')]:
            file = os.path.relpath(path, directory)
            name, is_package = file[:-len('.py')].replace(os.sep, '.'), file.endswith('__init__.py')
            status = os.stat(path)
            with open(path, 'rb') as source:
                code = marshal.dumps(compile(source.read(), path, 'exec', dont_inherit=True, optimize=2))
            name = name[:-len('.__init__')] if is_package else name
            yield name, (file, is_package, int(status.st_mtime), status.st_size, code)


if __name__ == '__main__':
    compile_tree(sys.argv[1])
