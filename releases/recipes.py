"""The recipes of a tree as values, which of them a new release can follow, and the text of their successors."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

#: Where recipes and locks of PyTorch are, in a tree.
DIRECTORY = Path("easyconfigs/p/PyTorch")


class Recipe(NamedTuple):
    """A recipe: its file, its text, and those of its parameters that are plain values."""

    path: Path
    text: str
    values: dict

    @property
    def name(self):
        """Name of the module's version: ``2.13.0-cpu-venv``."""
        return self.path.stem.partition("-")[2]

    @property
    def version(self):
        return self.values["version"]

    @property
    def kind(self):
        """What recipes of several releases have in common: the suffix without its numbers."""
        return re.sub(r"\d+(\.\d+)*", "#", self.values.get("versionsuffix", ""))

    @property
    def sources(self):
        """File names of the sources and of the files beside the recipe."""
        entries = self.values.get("sources", [])
        names = [entry["filename"] if isinstance(entry, dict) else entry for entry in entries]
        return [name.replace("%(name)s", "PyTorch").replace("%(version)s", self.version) for name in names]

    @property
    def lock(self):
        """Path of the requirements lock, or None."""
        return next((self.path.parent / name for name in self.sources if name.endswith(".txt")), None)

    @property
    def files(self):
        """Paths of the sources beside the recipe that have its version in their names, except the lock."""
        paths = [self.path.parent / name for name in self.sources if name.startswith(f"PyTorch-{self.version}-")]
        return [path for path in paths if path != self.lock]

    @property
    def obstacle(self):
        """Why no new recipe can be made from this one, or None."""
        if self.lock and self.values.get("gpu") == "rocm":
            return "the site's ROCm decides which wheels fit"
        if self.lock:
            pins = self.lock.read_text() if self.lock.exists() else ""
            return None if re.search("^torch==", pins, re.MULTILINE) else "its lock is for the image that it builds on"
        image = self.values.get("image") or ""
        if image.startswith("docker://") and f":{self.version}-" in image:
            return None
        return "the publisher of its image decides which PyTorch it has"


def read_recipe(path):
    """The recipe in a file."""
    text = path.read_text()
    values = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                values[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue  # a name of EasyBuild, as SYSTEM
    return Recipe(path, text, values)


def numbers(version):
    """A release as numbers, for comparison: 2.13.0 is newer than 2.9.1."""
    return [int(number) for number in re.findall(r"\d+", version)]


def newest_of_each_kind(tree):
    """The newest recipe of each kind in a tree."""
    newest = {}
    for recipe in map(read_recipe, sorted((tree / DIRECTORY).glob("*.eb"))):
        other = newest.setdefault(recipe.kind, recipe)
        if numbers(recipe.version) > numbers(other.version):
            newest[recipe.kind] = recipe
    return list(newest.values())


class Change(NamedTuple):
    """What differs between two releases: the versions of torch, and those of CUDA (<major>.<minor>; "" for CPUs)."""

    old: str
    new: str
    old_cuda: str = ""
    new_cuda: str = ""

    def apply(self, text):
        """The text, or file name, with the new versions of torch and CUDA; other numbers stay."""
        text = re.sub(rf"(?<![\d.]){re.escape(self.old)}(?!\.?\d)", self.new, text)
        if not self.old_cuda:
            return text
        text = re.sub(rf"(cuda-?|CUDA ){re.escape(self.old_cuda)}(?!\.?\d)", rf"\g<1>{self.new_cuda}", text)
        old, new = self.old_cuda.partition(".")[0], self.new_cuda.partition(".")[0]
        return re.sub(rf"(CUDA ){old}(?!\.?\d)", rf"\g<1>{new}", text)


def lines_changed(old, new):
    """How many lines of a new text the old one does not have."""
    return len(set(new.splitlines()) - set(old.splitlines()))
