# SPDX-License-Identifier: BSD-3-Clause
"""Entry point of the runscripts: imports the package, as compiled at installation where the sources are unchanged.

A script is compiled at every start, a module is not: all logic is in `launch`.
"""

import sys
from _frozen_importlib_external import MAGIC_NUMBER  # that of importlib.util, which costs more than this package
from marshal import loads
from posix import stat

RUNSCRIPTS = __file__.rsplit("/", 2)[0]


class Compiled:
    """Imports the modules that compile_tree.py compiled, all from one file (importlib.abc.MetaPathFinder, Loader).

    On a shared file system this costs a rank one call per module in place of three. A module whose source has another
    size or time than at installation is imported from that source, so an edit takes effect.
    """

    def __init__(self, modules):
        self.modules = modules

    def find_spec(self, name, *_):
        file, is_package, mtime, size, code = self.modules.get(name, (None,) * 5)
        if file is None:
            return None
        source = f"{RUNSCRIPTS}/{file}"
        found = stat(source)
        if (int(found.st_mtime), found.st_size) != (mtime, size):
            return None
        # the type ModuleSpec; importing it from importlib would cost a rank 6 % more instructions
        spec = type(sys.__spec__)(name, self, origin=source, loader_state=code, is_package=is_package)
        if is_package:
            spec.submodule_search_locations.append(source.rpartition("/")[0])
        return spec

    def create_module(self, _):
        return None

    def exec_module(self, module):
        exec(loads(module.__spec__.loader_state), module.__dict__)  # noqa: S102, S302  (as Python does with a .pyc)


sys.path.insert(0, RUNSCRIPTS)  # `python -I` leaves it out
try:
    with open(f"{RUNSCRIPTS}/__pycache__/pytorch_launch.{sys.implementation.cache_tag}.marshal", "rb") as file:  # noqa: PTH123
        packed = file.read()
    # Pythons of one tag may have other byte code: release candidates, and releases of PyPy
    if packed.startswith(MAGIC_NUMBER):
        sys.meta_path.insert(0, Compiled(loads(packed[len(MAGIC_NUMBER) :])))  # noqa: S302  (as Python does with a .pyc)
except (OSError, EOFError, ValueError, TypeError):  # a checkout, another Python, or a damaged file
    pass

from pytorch_launch.launch import main  # noqa: E402  (from the places above)

sys.exit(main(sys.argv[1:]))
