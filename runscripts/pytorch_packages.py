# SPDX-License-Identifier: BSD-3-Clause
"""Usage: list-packages [--user]

Lists the Python packages that ranks import: name, version and origin, which is `image` or `module`,
`environment` (your active one), `user-software` or `PYTHONUSERBASE`, or another place on the `host`.

--user  list only what was installed on top of the module, as input for `pip install -r` in another one
"""

import os
import re
import site
import subprocess
import sys
from importlib import metadata
from pathlib import Path

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:  # with PYTHONSAFEPATH
    sys.path.insert(0, HERE)
from pytorch_command import print_message, write_output  # noqa: E402  (from this directory)
from pytorch_launch.active import USER_SOFTWARE, in_container  # noqa: E402

PROGRAM = "list-packages"


def origin(path):
    if path.startswith(USER_SOFTWARE + os.sep):
        return "user-software"
    if path.startswith(site.getuserbase() + os.sep):
        return "PYTHONUSERBASE"
    root = os.environ.get("CONTAINERROOT")
    if root and path.startswith(root + os.sep):
        return "module"
    is_own, is_image = path.startswith(sys.prefix + os.sep), in_container(os.environ)
    names = ("VIRTUAL_ENV",) if is_image else ("VIRTUAL_ENV", "CONDA_PREFIX")
    if is_own and root and sys.prefix in map(os.environ.get, names):
        return "environment"
    return "image" if is_image else "module" if is_own else "host"


def packages():
    """The name, version and origin of every package that is imported, by its canonical name."""
    found = {}
    for path in sys.path[1:]:  # without the directory of this script
        for package in metadata.distributions(path=[path]):
            name = (package.metadata or {}).get("Name")
            if not name:  # left by a pip that was killed
                print_message(PROGRAM, f"skipped {package._path}: its metadata has no name")
                continue
            if "without its files" in package.metadata.get("Summary", ""):  # uv's, for the module's torch
                continue
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), (name, package.version, origin(path)))
    return found


def main(arguments):
    if arguments == ["--user"]:
        own = [path for path in sys.path[1:] if origin(path) in ("user-software", "PYTHONUSERBASE")]
        if own:
            options = [option for path in own for option in ("--path", path)]
            command = [sys.executable, "-m", "pip", "freeze", *options]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
            return done.returncode or int(write_output(PROGRAM, os.fsdecode(done.stdout)) != 0)
    elif arguments == ["--help"]:
        return int(write_output(PROGRAM, __doc__) != 0)
    elif arguments:
        print(__doc__, file=sys.stderr, end="")
        return 2
    else:
        found = packages()
        table = [("Package", "Version", "From"), *(found[name] for name in sorted(found))]
        widths = [max(map(len, column)) for column in zip(*table)]
        lines = [f"{name.ljust(widths[0])}  {version.ljust(widths[1])}  {place}\n" for name, version, place in table]
        return int(write_output(PROGRAM, "".join(lines)) != 0)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OSError as error:
        print_message(PROGRAM, f"{error.filename}: {error.strerror}. Check its disk")
        sys.exit(1)
