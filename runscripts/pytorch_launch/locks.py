# SPDX-License-Identifier: BSD-3-Clause
"""Reports old locks of torch's extensions, for which a launch would wait."""

import os

from pytorch_launch import Problem, names

#: Age of a lock that no compilation holds any more.
OLD_LOCK_SECONDS = 1800


def old_locks(env):
    """Problems: the locks in torch's directory of extensions that are older than a compilation takes; none is removed.

    torch creates an empty file and waits as long as it exists: only its age tells that a killed process left it
    (https://github.com/pytorch/pytorch/issues/189245).
    """
    directory = env.get("TORCH_EXTENSIONS_DIR", "")
    problems = []
    for name in sorted(names(directory)):
        lock = f"{directory}/{name}/lock"
        age = _age(lock)
        if age > OLD_LOCK_SECONDS:
            fault = f"{lock}: an old lock ({age // 60:.0f} minutes): what loads this extension may wait for ever"
            problems.append(Problem(fault, f"if no job compiles it now: rm {lock}"))
    return problems


def _age(path):
    """The seconds since a file was changed, 0 if there is none."""
    from time import time

    try:
        return time() - os.stat(path).st_mtime
    except OSError:
        return 0
