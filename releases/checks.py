"""EasyBuild's own checks of new recipes, before they are written into the tree."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from releases.recipes import DIRECTORY
from testbed.layout import TestbedError
from testbed.packages import find_lmod
from testbed.progress import step

CHECKS = ("--check-contrib", "--dry-run")
#: Lines of EasyBuild's output with the reason: a place in a file, a file that fails, an error.
FINDING = re.compile(r"\.eb:\d+:|^\[FAIL\]|^ERROR|unknown easyconfig parameter")


def check(tree, files, tools, temporary):
    """Run EasyBuild's checks on a copy of the tree's recipes with new files; raise TestbedError if one fails.

    `files` are texts by path relative to the tree, `tools` is the directory of ``eb``.
    """
    lmod = find_lmod()
    if not lmod:
        raise TestbedError("Lmod not found: EasyBuild needs it to check recipes. `python3 testbed up` installs it.")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EASYBUILD_")}
    environment |= {"EB_PYTHON": str(tools / "python"), "LMOD_CMD": str(lmod.parents[1] / "libexec" / "lmod")}
    with tempfile.TemporaryDirectory(dir=temporary) as directory:
        copy = Path(directory)
        shutil.copytree(tree / DIRECTORY, copy / DIRECTORY)
        for path, text in files.items():
            (copy / path).write_text(text)
        for option in CHECKS:
            with step(f"eb {option}"):
                result = subprocess.run([
                    tools / "eb", option, f"--include-easyblocks={tree}/easyblocks/*.py", f"--prefix={copy}",
                    f"--robot-paths={copy}/easyconfigs", "--allow-use-as-root-and-accept-consequences",
                    *(copy / path for path in files if path.suffix == ".eb"),
                ], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)  # fmt: skip
                output = result.stdout + result.stderr
                if result.returncode or "unknown easyconfig parameter" in output:
                    found = [line for line in output.splitlines() if FINDING.search(line)]
                    raise TestbedError("\n    ".join([f"eb {option} rejects the new recipes:", *found]))
