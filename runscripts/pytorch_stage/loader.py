"""Imports the modules that stage from their texts: nodes and first ranks read no module from the shared file system.

As a program it runs a keeper, or `--sweep`, from the texts in a variable.
"""

import base64
import json
import os
import sys
import zlib
from importlib.machinery import ModuleSpec


class Finder:
    """Imports modules from `texts`, by file name relative to `directory` (importlib.abc.MetaPathFinder, Loader)."""

    def __init__(self, texts, directory):
        self.texts = texts
        self.directory = directory

    def find_spec(self, name, *_):
        stem = name.replace(".", "/")
        for file, is_package in ((f"{stem}/__init__.py", True), (f"{stem}.py", False)):
            if file in self.texts:
                spec = ModuleSpec(name, self, origin=f"{self.directory}/{file}", is_package=is_package)
                if is_package:
                    spec.submodule_search_locations.append(f"{self.directory}/{stem}")
                return spec
        return None

    def create_module(self, _):
        return None

    def exec_module(self, module):
        module.__file__ = module.__spec__.origin
        code = compile(self.get_data(module.__file__), module.__file__, "exec")
        exec(code, module.__dict__)  # noqa: S102  (as Python does with a file)

    def get_data(self, path):
        """The bytes of a file, as any loader of Python returns them (importlib.abc.ResourceLoader)."""
        return self.texts[os.path.relpath(path, self.directory)].encode()


def import_from(texts, directory):
    """Import the modules in `texts` from there, ahead of files."""
    sys.meta_path.insert(0, Finder(texts, directory))


if __name__ == "__main__":
    packed = base64.b64decode(os.environ.pop("PYTORCH_STAGE_SOURCES"))
    import_from(json.loads(zlib.decompress(packed).decode()), "/")
    if sys.argv[1:] == ["--sweep"]:
        from pytorch_stage.places import candidates, sweep

        sweep(candidates(os.environ))
    else:
        from pytorch_stage.keeper import main

        sys.exit(main())
