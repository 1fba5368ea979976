"""What another user of a node can try against host tools; run by test_tools_under_attack.py, prints what succeeds.

Arguments: the number of the user who is attacked, and a directory in which every user may create names.
"""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from attacker import enter

#: How the name of a file can be taken before its user creates it.
OCCUPIED_BY = {
    "link": lambda path: path.symlink_to("precious"),
    "fifo": os.mkfifo,
    "directory": os.mkdir,
    "file": lambda path: path.write_text("of another user"),
}


def main(victim, public):
    """Attack until killed."""
    os.umask(0)
    public = Path(public)
    known = {public / "precious"}
    print("ready", flush=True)
    while True:
        for path in set(public.iterdir()) - known:
            known.add(path)
            if path.is_dir() and path.stat().st_uid == victim:
                occupy(path)
                intrude(path)
        resemble_ranks(victim)
        time.sleep(0.01)


def occupy(path):
    """Take the names beside a directory that programs could choose; its own name has what takes that of the result."""
    for number, name in enumerate((".{}.work", ".{}.lock", ".{}.work.XXXXXX", "{}.sqsh.tmp")):
        with contextlib.suppress(OSError):
            list(OCCUPIED_BY.values())[number](path.with_name(name.format(path.name)))
    kind = path.name.rpartition("-")[2]
    with contextlib.suppress(OSError, KeyError):
        OCCUPIED_BY[kind](path.with_name(f"{path.name}.sqsh"))


def intrude(path):
    """Write into a directory of the user, make it one's own, or replace it."""
    if path.name.startswith("."):
        for attempt in (
            os.listdir,
            lambda path: path.chmod(0o777),
            lambda path: path.rename(f"{path}-moved"),
            lambda path: path.rmdir(),
            lambda path: Path(path, "packed").write_text("of another user"),
        ):
            with contextlib.suppress(OSError):
                attempt(path)
                print("entered", path, flush=True)


def resemble_ranks(victim):
    """Enter the user's ranks, and start processes that look like these."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == victim:
                enter(process)
    names = {"RANK": "0", "WORLD_SIZE": "2", "SLURM_JOB_ID": "1", "PATH": "/tmp\033[2J"}  # noqa: S108
    with contextlib.suppress(OSError):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)", "\033[2Jpython"], env=names)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
