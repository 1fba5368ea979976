"""The new files of a release: which recipes follow it, and what each becomes."""

import hashlib
from typing import NamedTuple

from releases import locks, registry
from releases.recipes import Change, newest_of_each_kind, numbers
from testbed.layout import TestbedError
from testbed.progress import step


class Release(NamedTuple):
    """A release as files: texts by path relative to the tree; names of new recipes by old ones; and what is missing.

    `unwritten` are the reasons by the name of the recipe that has no successor.
    """

    files: dict
    successors: dict
    unwritten: dict


def make_release(tree, version, machines, tools):
    """Return the Release of a version of torch.

    Parameters
    ----------
    machines : list of str
        Machines (`uname -m`) to lock for; empty: those of each lock.
    tools : Path
        Directory of ``uv`` and ``pip``.

    Raises
    ------
    TestbedError
        If the tree has the version, an index lacks it, or nothing can be written.
    """
    candidates = [recipe for recipe in newest_of_each_kind(tree) if not recipe.obstacle]
    older = [recipe for recipe in candidates if numbers(recipe.version) < numbers(version)]
    if not older:
        names = ", ".join(recipe.path.name for recipe in candidates)
        raise TestbedError(f"No recipe is older than PyTorch {version}: {names}. Give a newer version.")
    release = Release({}, {}, {recipe.name: recipe.obstacle for recipe in newest_of_each_kind(tree) if recipe.obstacle})
    resolved = {}
    for recipe in older:
        try:
            files, successor = successor_files(recipe, version, machines, tools, resolved)
        except locks.NotReachedError as error:
            release.unwritten[recipe.name] = str(error)
            continue
        release.files.update({path.relative_to(tree): text for path, text in files.items()})
        release.successors[recipe.name] = successor
    if not release.successors:
        reasons = "; ".join(dict.fromkeys(release.unwritten[recipe.name] for recipe in older))
        raise TestbedError(f"No index or registry that answers has PyTorch {version}: {reasons}. Try again later.")
    return release


def successor_files(recipe, version, machines, tools, resolved):
    """Return the files that a recipe becomes, texts by path, and the name of the new recipe.

    `resolved` has the results of locks that other recipes share, and gets this one's.
    """
    if not recipe.lock:
        change = Change(recipe.version, version)
        with step(f"digest of {change.apply(recipe.path.name)}"):
            image = registry.pinned(recipe.values["image"], change)
        digest = recipe.values["image"].partition("@")[2]
        files, checksums = {}, {digest: image.partition("@")[2]}
    else:
        if recipe.lock not in resolved:
            resolved[recipe.lock] = resolve(recipe, version, machines, tools)
        change, text = outcome(resolved[recipe.lock])
        files = {recipe.lock: text, **{path: change.apply(path.read_text()) for path in recipe.files}}
        checksums = {sha256(path.read_text()): sha256(text) for path, text in files.items()}
        files = {path.with_name(change.apply(path.name)): text for path, text in files.items()}
    text = change.apply(recipe.text)
    for old, new in checksums.items():
        if old not in text:
            raise TestbedError(f"{recipe.path}: no checksum {old}. Run `eb --inject-checksums` on it first.")
        text = text.replace(old, new)
    path = recipe.path.with_name(change.apply(recipe.path.name))
    return {**files, path: text}, path.stem.partition("-")[2]


def resolve(recipe, version, machines, tools):
    """The Change and the text of the new lock, or the NotReachedError."""
    old = locks.read_lock(recipe.lock)
    machines = machines or old.machines
    label = old.torch.partition("+")[2]
    torch = f"{version}+{label}" if label else version
    resolver = locks.Resolver(tools, recipe.values.get("python_version", "3.11"), recipe.values.get("wheel_index"))
    try:
        with step(f"{recipe.lock.name} for torch {torch} on {', '.join(machines)}"):
            packages = locks.renew(old, torch, machines, resolver.resolve)
    except locks.NotReachedError as error:
        return error
    new = old._replace(packages=packages)
    change = Change(recipe.version, version, old.cuda, new.cuda)
    return change, locks.lock_text(old, packages, machines, change.apply)


def outcome(result):
    """The result of `resolve`; its error is raised for each recipe of the lock."""
    if isinstance(result, Exception):
        raise result
    return result


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()
