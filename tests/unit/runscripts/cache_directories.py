"""The directories of caches: how tests choose, find and check them."""

import os
import stat
from pathlib import Path

from pytorch_launch.caches import SUBDIRECTORIES, choose_caches, make_caches

UID = os.geteuid()
KEY = "7-nid001003"


def place(env, uid, key, create, **default):
    """The directory of the caches, their variables, all warnings; with `create` they are made."""
    directory, variables, warnings = choose_caches(env, uid, key, **default)
    directory, variables, more = make_caches(directory, variables) if create else (directory, variables, [])
    return directory, variables, [*map(str, warnings), *map(str, more)]


def usual(base):
    return base / f"pytorch-{UID}" / KEY


def everything_in(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def assert_private(directory):
    status = directory.lstat()
    assert stat.S_ISDIR(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o700
    assert status.st_uid == UID


def assert_elsewhere_and_private(base, directory, variables):
    """The caches are under `base`, but not where an attacker could expect them."""
    root = Path(directory).parent
    assert directory == str(root / KEY)
    assert root.parent == base
    assert root != base / f"pytorch-{UID}"
    assert variables == {name: f"{directory}/{sub}" for name, sub in SUBDIRECTORIES.items()}
    for path in (root, root / KEY, *map(Path, variables.values())):
        assert_private(path)
