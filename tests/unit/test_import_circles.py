"""No module imports one that imports it, at its start or in a function: each can be read, tested and moved alone."""

import ast

import graphlib
import pytest
from repository import TREE


def modules_in(directory):
    """The files of the modules in a directory, by the names under which they are imported."""
    names = {path: ".".join(path.relative_to(directory).with_suffix("").parts) for path in directory.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def imported(path, name, modules):
    """The names of those of the modules that a module imports anywhere."""
    found = set()
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            names = {f"{source}.{alias.name}" for alias in node.names}
            # a name in a module, or a module in a package
            found.update(name if name in modules else source for name in names)
    return found & modules.keys()


def circle(directory):
    """The names of modules of which each imports the next, and the last is the first; None without such."""
    modules = modules_in(directory)
    graph = {name: imported(path, name, modules) for name, path in modules.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return None


@pytest.mark.parametrize("room", ["runscripts", "payload", "easyblocks"])
def test_no_module_imports_one_that_imports_it(room):
    assert len(modules_in(TREE / room)) > 20
    assert circle(TREE / room) is None
