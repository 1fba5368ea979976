"""Write recipes and locks of a PyTorch release from those of the newest one in the tree.

The newest lock of each kind that has a comment `# requirements: torch ...` is followed, and the recipes that install
it. No existing file is changed. Not all indexes have a release at once: run the command again to add what is missing.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from testbed.layout import Layout, TestbedError  # noqa: E402
from testbed.lifecycle import provide_environment  # noqa: E402
from testbed.progress import exit_status, step  # noqa: E402
from tools.releases.indexes import FOREIGN, pip_indexes  # noqa: E402

#: The newest C library that wheels may need, as in easyblocks/generic/lockedvenv.py.
PLATFORM = "manylinux_2_28"


class NoWheelError(Exception):
    """The indexes of pip's configuration do not have the wheels of a lock; the message is the reason."""


def main(arguments):
    """Write one release; return the exit status."""
    parser = argparse.ArgumentParser("new-release", description=__doc__)
    parser.add_argument("version", help="version of torch: 2.15.1")
    parser.add_argument(
        "--machine",
        action="append",
        choices=["x86_64", "aarch64"],
        help="lock only for this machine; by default for those of the newest lock",
    )
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"\d+\.\d+\.\d+", options.version):
        parser.error(f"'{options.version}' is not a release number such as 2.15.1")
    if sys.version_info < (3, 11):
        raise TestbedError(f"Python 3.11 or newer is needed, and {sys.executable} is older. Put one first on PATH.")
    layout = Layout.from_environment(os.environ)
    tools = provide_environment(layout, "release")
    files = {}
    for lock in newest_locks(layout.repository / "easyconfigs" / "p" / "PyTorch", options.version):
        try:
            files |= successors(lock, options, tools / "bin")
        except NoWheelError as error:
            print(f"new-release: no successor of {lock.name}: {error}", file=sys.stderr)
    if not files:
        raise TestbedError(f"nothing was written: no index has PyTorch {options.version}, or no recipe is older.")
    existing = [str(path) for path in files if path.exists()]
    if existing:
        raise TestbedError(f"nothing was written: {', '.join(existing)}: file exists. Remove it.")
    for path, text in files.items():
        path.write_text(text)
        print(path.relative_to(layout.repository))
    print("Next: add a row for each recipe to docs/systems.md and a line to CHANGELOG.md, and run ./run-tests")
    return 0


def newest_locks(directory, version):
    """The newest lock of torch of each kind, if it is older than a version."""

    def release(name):
        return [int(number) for number in name.split("-")[1].split(".")]

    locks = [path for path in directory.glob("*.txt") if "\n# requirements: torch " in path.read_text()]
    locks.sort(key=lambda path: release(path.name))
    newest = {re.sub(r"\d+(\.\d+)*", "#", path.name): path for path in locks}
    return [path for path in newest.values() if release(path.name) < release(f"PyTorch-{version}")]


def successors(lock, options, tools):
    """The new lock, its definition files and its recipes, as texts by path."""
    _, old, kind = lock.stem.split("-", 2)
    old_lock = lock.read_text()
    recipes = recipes_of(lock, f"'%(name)s-%(version)s-{kind}.txt'")
    all_recipes = "".join(recipes.values())
    definitions = definitions_of(lock, old, all_recipes)
    machines = options.machine or machines_of(old_lock)
    pins = renew(old_lock, all_recipes, options.version, machines, tools)
    replace = replacer(old, options.version, cuda_of(old_lock), cuda_of(pins))
    comments = "".join(replace(line) for line in old_lock.splitlines(keepends=True) if line.startswith("#"))
    new = {path: replace(text) for path, text in {**definitions, **recipes}.items()}
    new[lock] = re.sub("# machines: .*", f"# machines: {' '.join(machines)}", comments) + pins
    for recipe in recipes:
        for path, text in {lock: old_lock, **definitions}.items():
            new[recipe] = new[recipe].replace(sha256(text), sha256(new[path]))
    return {path.with_name(replace(path.name)): text for path, text in new.items()}


def recipes_of(lock, name):
    """The recipes (path -> text) that install a lock, which they call `name`."""
    release = "-".join(lock.name.split("-")[:2])
    recipes = {path: path.read_text() for path in lock.parent.glob(f"{release}-*.eb")}
    return {path: text for path, text in recipes.items() if name in text}


def definitions_of(lock, version, recipes):
    """The definition files (path -> text) that the text of recipes names."""
    names = re.findall(r"'%\(name\)s-%\(version\)s(-[\w.-]+\.def)'", recipes)
    paths = [lock.with_name(f"PyTorch-{version}{name}") for name in names]
    return {path: path.read_text() for path in paths}


def machines_of(lock):
    """The machines that a lock declares."""
    declared = re.search("^# machines: (.+)$", lock, re.MULTILINE)
    if declared:
        return declared[1].split()
    return ["x86_64"]


def renew(lock, recipe, version, machines, tools):
    """The pins of a lock for another version of torch, with the same packages on each machine."""
    # exactly this build: `==2.13.0` would also accept 2.13.0+cpu
    torch = f"torch==={version}" + re.search(r"^torch==[\d.]+(\S*)", lock, re.MULTILINE)[1]
    declared = re.search("^# requirements: (.+)$", lock, re.MULTILINE)[1].split()
    requirements = [torch, *(name for name in declared if name != "torch")]
    pins = {}
    with step(f"{torch} on {', '.join(machines)}"):
        for machine in machines:
            found = resolve(requirements, pins, machine, recipe, tools)
            if pins and set(found) != set(pins):
                names = ", ".join(sorted(set(found) ^ set(pins)))
                raise NoWheelError(f"{names}: needed on one of {', '.join(machines)} only. Lock for one (--machine).")
            pins = {pin: dict.fromkeys([*pins.get(pin, []), *hashes]) for pin, hashes in found.items()}
    return "".join(f"{pin}{''.join(f' --hash=sha256:{value}' for value in pins[pin])}\n" for pin in pins)


def resolve(requirements, constraints, machine, recipe, tools):
    """The packages (`name==version`) that requirements need on a machine, with the SHA-256 of the wheels that fit.

    Like the easyblock, it tries the recipe's `wheel_index` only if pip's own indexes do not have the wheels.
    """
    with tempfile.TemporaryDirectory() as directory:
        wanted = Path(directory, "requirements.in")
        wanted.write_text("\n".join(requirements))
        limits = Path(directory, "constraints.txt")
        limits.write_text("\n".join(constraints))
        # this format has only the wheels that fit; requirements.txt has the hashes of all Pythons and machines
        command = [tools / "uv", "pip", "compile", wanted, "--constraints", limits, "--only-binary", ":all:"]
        command += ["--format", "pylock.toml", "--generate-hashes", "--index-strategy", "unsafe-best-match"]
        command += ["--no-header", "--no-config", "--no-progress", "--no-python-downloads", "--color", "never"]
        command += ["--python-version", parameter(recipe, "python_version") or "3.11"]
        command += ["--python-platform", f"{machine}-{PLATFORM}", *pip_indexes(tools)]
        result = compile_lock(command)
        index = parameter(recipe, "wheel_index")
        if result.returncode and index:
            result = compile_lock([*command, "--index", index])
    if result.returncode:
        reasons = re.findall(r"^(?:error|\s*cause): (.*)$", result.stderr, re.MULTILINE) or [result.stderr.strip()]
        raise NoWheelError(f"{machine}: {reasons[-1]}")
    return hashes_of(result.stdout)


def parameter(recipe, name):
    """The value of a text parameter of a recipe, or None."""
    found = re.search(f"^{name} = '(.+)'", recipe, re.MULTILINE)
    return found and found[1]


def compile_lock(command):
    """Run uv without the variables of other programs; return the process."""
    environment = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def hashes_of(lock):
    """The SHA-256 of the wheels of each package (`name==version`) of a lock in uv's format."""
    import tomllib

    return {
        f"{package['name']}=={package['version']}": [wheel["hashes"]["sha256"] for wheel in package["wheels"]]
        for package in tomllib.loads(lock)["packages"]
    }


def replacer(old, new, old_cuda, new_cuda):
    """A function that puts the new versions of torch and CUDA (<major>.<minor>) into a text or a file name."""

    def replace(text):
        text = re.sub(rf"(?<![\d.]){re.escape(old)}(?!\.?\d)", new, text)
        for before, after in ((old_cuda, new_cuda), (old_cuda.partition(".")[0], new_cuda.partition(".")[0])):
            if before:
                text = re.sub(rf"(cuda-?|CUDA ){re.escape(before)}(?!\.?\d)", rf"\g<1>{after}", text)
        return text

    return replace


def cuda_of(lock):
    """Version of CUDA (<major>.<minor>) in a lock, "" for CPUs."""
    return (re.search(r"^cuda-toolkit==(\d+\.\d+)", lock, re.MULTILINE) or ["", ""])[1]


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    sys.exit(exit_status(lambda: main(sys.argv[1:]), program="new-release", again="Nothing was written."))
