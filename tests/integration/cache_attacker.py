"""What another user of a node can try against the caches of a launch; run by test_caches_under_attack.py until killed.

Arguments: the user who launches, and the kind of attack. Prints each directory of that user into which it can write.
"""

import contextlib
import itertools
import os
import sys
from pathlib import Path

TMP = Path("/tmp")  # noqa: S108  (of the test's own mount)


def main(victim, kind):
    """Attack until killed."""
    os.umask(0)
    for name in ("torchinductor_victim", f"torchinductor_{victim}", "triton"):
        (TMP / name).mkdir(exist_ok=True)  # torch's defaults
    if kind == "link":
        (TMP / f"pytorch-{victim}").symlink_to(TMP)
    print("ready", flush=True)
    for count in itertools.count():
        with contextlib.suppress(OSError):
            attack(victim, kind, count)
        write_into(TMP, int(victim))


def attack(victim, kind, count):
    """Take or replace a name before the victim uses it; `count` makes names new."""
    top = TMP / f"pytorch-{victim}"
    scratch = TMP / "open" / "scratch"  # of the victim, without a sticky bit, with a link to it at home
    if kind == "race":
        top.mkdir()
        top.rename(TMP / f"moved-{count}")
    elif kind == "replace":
        scratch.rename(scratch.with_name(f"moved-{count}"))
        scratch.mkdir()
    elif kind == "filling":
        (TMP / f"file-{count}").touch()


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
