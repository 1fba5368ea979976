# SPDX-License-Identifier: BSD-3-Clause
"""The directory of a run's sharded checkpoints: each is a directory, complete or not there."""

from __future__ import annotations

import re
import secrets
import shutil
from pathlib import Path

from training.checkpoint import DAMAGED, Directory
from training.files import TEMPORARY, sync_directory

NAME = re.compile(r"step-(\d{8,})")


class ShardedDirectory(Directory):
    """Checkpoints that are directories.

    ``step-00000500`` was written after 500 steps. Its temporary name begins with a dot, and it is deleted
    under such a name, so what a killed run leaves is recognised.
    """

    def paths(self) -> list[Path]:
        """Return all checkpoints, oldest first."""
        found = [path for path in self.directory.iterdir() if NAME.fullmatch(path.name)]
        return sorted(found, key=step_of)

    def prepare(self, *, restart: bool = False) -> None:
        """Open the directory, and delete what was not completed; ``restart`` also deletes the checkpoints."""
        self.open()
        for path in list(self.directory.iterdir()):
            match = TEMPORARY.fullmatch(path.name)
            if match and NAME.fullmatch(match[1]):
                delete(path)
            elif restart and NAME.fullmatch(path.name.removesuffix(DAMAGED)):
                self.remove(path)

    def temporary(self, step: int) -> Path:
        """Return a new name for the checkpoint after ``step`` steps while it is written."""
        return self.directory / f".{name_of(step)}.{secrets.token_hex(4)}"

    def complete(self, temporary: Path, step: int) -> None:
        """Give a checkpoint whose files are on the disk its name, and delete the oldest ones."""
        path = self.directory / name_of(step)
        if path.exists():
            self.put_aside(path)
        temporary.rename(path)
        sync_directory(self.directory)
        for old in self.outdated(path):
            self.remove(old)

    def put_aside(self, path: Path) -> None:
        """Rename a damaged checkpoint, and replace one of this name that was put aside before."""
        aside = path.with_name(path.name + DAMAGED)
        if aside.exists():
            self.remove(aside)
        path.rename(aside)

    def remove(self, path: Path) -> None:
        """Delete a checkpoint: at once, as readers see it."""
        step = NAME.match(path.name)[1]
        hidden = self.temporary(int(step))
        path.rename(hidden)
        delete(hidden)


def name_of(step: int) -> str:
    """Return the name of the checkpoint after ``step`` steps."""
    return f"step-{step:08}"


def step_of(path: Path) -> int:
    """Return the steps in the name of a checkpoint."""
    return int(NAME.fullmatch(path.name)[1])


def delete(path: Path) -> None:
    """Delete a directory with all its files, or a file; what cannot be deleted stays for the next start."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
