"""What another user of a node can try against the caches of a launch; run by test_caches_under_attack.py until killed.

Arguments: the user who launches, and the kind of attack. Prints each directory of that user into which it can write.
"""

import contextlib
import os
import sys
from pathlib import Path

TMP = Path("/tmp")  # noqa: S108  (of the test's own mount)


def main(victim, kind):
    """Attack until killed."""
    os.umask(0)
    top = TMP / f"pytorch-{victim}"
    open_directory = TMP / "open"  # of the victim, without a sticky bit, with a link to it at home
    for name in ("torchinductor_victim", f"torchinductor_{victim}", "triton"):
        (TMP / name).mkdir(exist_ok=True)  # torch's defaults
    if kind == "link":
        top.symlink_to(TMP)
    elif kind == "directory":
        (top / "7-nid001001" / "triton").mkdir(parents=True)
    if kind == "full":
        fill()
    print("ready", flush=True)
    count = 0
    while True:
        with contextlib.suppress(OSError):
            if kind == "race":
                top.mkdir()
                top.rename(TMP / f"moved-{os.urandom(8).hex()}")
            elif kind == "replace":
                (open_directory / "scratch").rename(open_directory / f"moved-{count}")
                (open_directory / "scratch").mkdir()
            elif kind == "filling":
                (TMP / f"file-{count}").touch()
        count += 1
        write_into(TMP, int(victim))


def fill():
    """Use all inodes."""
    with contextlib.suppress(OSError):
        for number in range(1000):
            (TMP / f"file-{number}").touch()


def write_into(top, victim):
    """Try to write into each directory below `top` that belongs to the victim or is named like a cache."""
    for directory, _, _ in os.walk(top):
        with contextlib.suppress(OSError):
            is_cache = "triton" in directory or "inductor" in directory
            if is_cache and Path(directory).stat().st_uid == victim:
                Path(directory, "stolen").touch()
                print("wrote", directory, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
