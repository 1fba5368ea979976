##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
The compiled modules that a start of a packed venv imports, in one file: Python looks for none of them and opens none.

When the venv is packed, its Python runs `packed_modules.py DIRECTORY MODULE...`, which imports modules and writes what
that imports, with this program and a .pth file, to a directory, for the packed site-packages. There, each start of
Python calls `install`. All else stays: the order of sys.path, other modules, `__file__`, sources, tracebacks. The
packed file is mounted read-only, so what is written here is what Python would find. Python 3.8 or newer.
"""
import importlib
import marshal
import mmap
import os
import sys
from importlib import machinery
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader

# This program in the packed venv.
NAME = 'pytorch_packed_modules'
START = f'import {NAME}; {NAME}.install()\n'

# What a directory's finder of Python looks for, in this order.
LOADERS = ((machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
           (machinery.SourceFileLoader, machinery.SOURCE_SUFFIXES),
           (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES))

# Bytes of the number that begins the file: the length of the index after it.
NUMBER = 8


class Loader(SourceFileLoader):
    """
    Loads one module, whose compiled code is `content`.
    """

    def __init__(self, name, path, content):
        super().__init__(name, path)
        self.content = content

    def get_code(self, fullname):
        """The code of the module."""
        if fullname != self.name:
            return super().get_code(fullname)
        return marshal.loads(self.content)  # noqa: S302  (of the installation, as Python's own bytecode is)


class Finder(FileFinder):
    """
    Finds the modules of one directory, whose content never changes.

    :param names: all names that can be imported from there: (offset, length, whether it is a package) of those in
                  `content`, None for those that Python has to find
    """

    def __init__(self, path, names, content):
        super().__init__(path, *LOADERS)
        self.names = names
        self.content = content

    def find_spec(self, fullname, target=None):
        """The specification of a module; None if this directory has none of that name."""
        tail = fullname.rpartition('.')[2]
        if tail not in self.names:
            return None
        if self.names[tail] is None:
            return super().find_spec(fullname, target)
        offset, length, is_package = self.names[tail]
        stem = os.path.join(self.path, tail)
        path = os.path.join(stem, '__init__.py') if is_package else stem + '.py'
        loader = Loader(fullname, path, self.content[offset:offset + length])
        spec = ModuleSpec(fullname, loader, origin=path, is_package=is_package)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations.append(stem)
        return spec


def install():
    """Let this Python import from the file, if that was written by such a Python for this place."""
    with open(os.path.join(os.path.dirname(__file__), NAME + '.bin'), 'rb') as file:
        content = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    end = NUMBER + int.from_bytes(content[:NUMBER], 'little')
    description, directories = marshal.loads(content[NUMBER:end])  # noqa: S302
    if description != describe():
        return
    content = content[end:]

    def find(path):
        if path not in directories:
            raise ImportError(f"{path} has no packed modules")
        return Finder(path, directories[path], content)

    sys.path_hooks.insert(0, find)
    for path in directories:
        sys.path_importer_cache.pop(path, None)


def describe():
    """What the compiled modules depend on."""
    return sys.prefix, sys.implementation.cache_tag, sys.version, sys.flags.optimize


def packed_modules():
    """The modules that this Python has imported from sources below its prefix, in this order: names and paths."""
    for name, module in list(sys.modules.items()):
        spec = getattr(module, '__spec__', None)
        is_source = spec and spec.name == name and type(spec.loader) is SourceFileLoader
        if is_source and spec.origin.startswith(sys.prefix + os.sep):
            yield name, spec.origin


def names_in(directory):
    """All names that can be imported from a directory: of files up to the first dot, and of directories."""
    return {entry.name.partition('.')[0] for entry in os.scandir(directory)}


def write(target):
    """Write what this Python has imported, this program, and the .pth file to the directory `target`."""
    import py_compile  # here: not at each start of Python

    directories = {path: dict.fromkeys(names_in(path)) for path in sys.path if path.startswith(sys.prefix + os.sep)}
    finders, codes, size = {}, [], 0
    for name, path in packed_modules():
        is_package = os.path.basename(path) == '__init__.py'
        directory = os.path.dirname(os.path.dirname(path) if is_package else path)
        tail = name.rpartition('.')[2]
        if directory not in finders:
            finders[directory] = FileFinder(directory, *LOADERS)
        usual = finders[directory].find_spec(tail)
        if not usual or usual.origin != path:
            continue  # imported in a way of its own
        code = marshal.dumps(SourceFileLoader(name, path).get_code(name))
        if directory not in directories:
            directories[directory] = dict.fromkeys(names_in(directory))
        directories[directory][tail] = size, len(code), is_package
        codes.append(code)
        size += len(code)
    index = marshal.dumps((describe(), directories))
    with open(os.path.join(target, NAME + '.bin'), 'wb') as file:
        file.writelines([len(index).to_bytes(NUMBER, 'little'), index, *codes])
    # without its source, for which Python would look too
    py_compile.compile(__file__, os.path.join(target, NAME + '.pyc'), NAME, doraise=True)
    with open(os.path.join(target, NAME + '.pth'), 'w') as file:
        file.write(START)


def main(target, *names):
    """Import modules, as far as this host can, write what that imports, and print the directory that it is for."""
    import sysconfig

    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # without a GPU's libraries, for example
            print(f"{name} is not imported: {error}", file=sys.stderr)
    write(target)
    print(sysconfig.get_path('purelib'))


if __name__ == '__main__':
    main(*sys.argv[1:])
