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
    root, is_image = os.environ.get("CONTAINERROOT"), in_container(os.environ)
    places = {USER_SOFTWARE: "user-software", site.getuserbase(): "PYTHONUSERBASE", root: "module"}
    is_own = path.startswith(sys.prefix + os.sep)
    names = ("VIRTUAL_ENV",) if is_image else ("VIRTUAL_ENV", "CONDA_PREFIX")
    if is_own and root and sys.prefix in map(os.environ.get, names):
        places[sys.prefix] = "environment"
    default = "image" if is_image else "module" if is_own else "host"
    return next((name for place, name in places.items() if place and path.startswith(place + os.sep)), default)


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
    if arguments == ["--help"]:
        text = __doc__
    elif arguments == ["--user"]:
        own = [path for path in sys.path[1:] if origin(path) in ("user-software", "PYTHONUSERBASE")]
        if not own:
            return 0
        options = [option for path in own for option in ("--path", path)]
        done = subprocess.run([sys.executable, "-m", "pip", "freeze", *options], stdout=subprocess.PIPE, check=False)
        if done.returncode:
            return done.returncode
        text = os.fsdecode(done.stdout)
    elif arguments:
        print(__doc__, file=sys.stderr, end="")
        return 2
    else:
        found = packages()
        table = [("Package", "Version", "From"), *(found[name] for name in sorted(found))]
        widths = [max(map(len, column)) for column in zip(*table)]
        lines = (f"{name.ljust(widths[0])}  {version.ljust(widths[1])}  {place}\n" for name, version, place in table)
        text = "".join(lines)
    return int(write_output(PROGRAM, text) != 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
