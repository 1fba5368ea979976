# SPDX-License-Identifier: BSD-3-Clause
"""Usage: list-packages [--user]

Lists the Python packages that ranks import: name, version and origin, which is `image` or `module`,
`environment` (your active one), `user-software`, `PYTHONUSERBASE` or `PYTHONPATH`, or another place on the `host`.

--user  list only what was installed on top of the module, as input for `pip install -r` in another one
"""

import os
import re
import site
import subprocess
import sys
from collections import namedtuple
from importlib import metadata
from pathlib import Path

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:  # with PYTHONSAFEPATH
    sys.path.insert(0, HERE)
from pytorch_command import print_message, write_output  # noqa: E402  (from this directory)
from pytorch_launch.container import USER_SOFTWARE, device, image_devices  # noqa: E402

PROGRAM = "list-packages"
#: Origins of what a user has installed.
OF_USER = ("user-software", "PYTHONUSERBASE", "environment")

Package = namedtuple("Package", "name version origin")


def find_origin(path):
    """The origin of the packages in a directory of the search path."""
    root = os.environ.get("CONTAINERROOT") or "/nonexistent"
    places = [("user-software", USER_SOFTWARE), ("PYTHONUSERBASE", site.getuserbase())]
    active = (os.environ.get("VIRTUAL_ENV"), os.environ.get("CONDA_PREFIX"))
    images = image_devices(os.environ)
    is_own = not is_below(sys.prefix, root) and device(sys.prefix) not in images
    if is_own and sys.prefix in active:
        places.append(("environment", sys.prefix))
    places += [("PYTHONPATH", entry) for entry in os.environ.get("PYTHONPATH", "").split(":") if entry]
    places.append(("module", root))
    for name, place in places:
        if is_below(path, place):
            return name
    if images:
        return "image" if device(path) in images else "host"
    return "module" if is_below(path, sys.prefix) else "host"


def is_below(path, directory):
    return f"{path}/".startswith(directory.rstrip("/") + "/")


def find_packages():
    """The Package of every name that is imported."""
    found = {}
    for path in sys.path[1:]:  # without the directory of this script
        for package in metadata.distributions(path=[path]):
            name = (package.metadata or {}).get("Name")
            if not name:  # left by a pip that was killed
                print_message(PROGRAM, f"skipped {package._path}: its metadata has no name")
            elif "without its files" not in package.metadata.get("Summary", ""):  # uv's, for the module's torch
                canonical = re.sub(r"[-_.]+", "-", name).lower()
                found.setdefault(canonical, Package(name, package.version, find_origin(path)))
    return [found[name] for name in sorted(found)]


def as_table(packages):
    rows = [Package("Package", "Version", "From"), *packages]
    name_width = max(len(row.name) for row in rows)
    version_width = max(len(row.version) for row in rows)
    return "".join(f"{row.name:{name_width}}  {row.version:{version_width}}  {row.origin}\n" for row in rows)


def freeze():
    """The exit status and the output of pip for what the user has installed."""
    command = [sys.executable, "-m", "pip", "freeze"]
    own = [path for path in sys.path[1:] if find_origin(path) in OF_USER]
    if not own:
        return 0, ""
    for path in own:
        command += ["--path", path]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    return done.returncode, os.fsdecode(done.stdout)


def main(arguments):
    if arguments == ["--help"]:
        return write_output(PROGRAM, __doc__)
    if arguments == ["--user"]:
        status, text = freeze()
        return status or int(write_output(PROGRAM, text) != 0)
    if arguments:
        print_message(PROGRAM, f"unknown arguments {' '.join(arguments)}: use --user or --help")
        return 2
    return int(write_output(PROGRAM, as_table(find_packages())) != 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
