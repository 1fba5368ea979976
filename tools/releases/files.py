"""Build the files of a release from the last commit: the tarball, two wheels, and SHA256SUMS.

Everything is built twice, and the builds have to be equal, byte for byte. With --demo, the tarball is unpacked to a new
directory and its ./demo runs there, with a testbed of its own.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from testbed.layout import ROOT_VARIABLE, Layout, TestbedError  # noqa: E402
from testbed.lifecycle import provide_environment  # noqa: E402
from testbed.progress import exit_status, run, step  # noqa: E402

NAME = "pytorch-easybuild"
SUMS = "SHA256SUMS"
#: The projects of the tree that have a wheel.
WHEELS = (".", "runscripts")
#: The modes of all files depend neither on the user's umask nor on the configuration of git.
UMASK = 0o022


def main(arguments):
    """Build, compare and check; return the exit status."""
    parser = argparse.ArgumentParser("tools/release", description=__doc__)
    parser.add_argument("--output", type=Path, metavar="DIR", help="a new directory (default: dist below the testbed)")
    parser.add_argument("--demo", action="store_true", help="also run ./demo of the unpacked tarball")
    options = parser.parse_args(arguments)
    layout = Layout.from_environment(os.environ)
    output = (options.output or layout.root / "dist").absolute()
    if output.exists():
        raise TestbedError(f"{output} exists. Remove it, or choose another directory with --output.")
    require_committed(layout.repository)
    python = provide_environment(layout, "release") / "bin" / "python"
    with tempfile.TemporaryDirectory(dir=layout.temporary) as temporary:
        first = Path(temporary, "first")
        second = Path(temporary, "second")
        for directory in (first, second):
            with step(f"the {directory.name} of two builds"):
                build(layout.repository, directory, python)
        require_equal(first, second)
        if options.demo:
            run_demo(first, Path(temporary, "demo"))
        first.rename(output)
    print(f"{output}:\n{(output / SUMS).read_text()}", end="")
    return 0


def require_committed(repository):
    """Raise TestbedError unless the files of the last commit are those of the tree."""
    command = ["git", "-C", repository, "status", "--porcelain"]
    status = subprocess.run(command, capture_output=True, text=True, check=False)
    if status.returncode:
        raise TestbedError(f"{repository} is no git repository. Build a release in a clone.")
    if status.stdout:
        raise TestbedError(f"files are not committed: {repository}:\n{status.stdout}Commit them, or remove them.")


def version_of(pyproject):
    """The version that a pyproject.toml declares."""
    return re.search(r'^version = "(.+)"$', pyproject.read_text(), re.MULTILINE)[1]


def build(repository, output, python):
    """Write the tarball of the last commit, the wheels of its content, and the checksums to a new directory."""
    name = f"{NAME}-{version_of(repository / 'pyproject.toml')}"
    tarball = output / f"{name}.tar.gz"
    output.mkdir()
    archive = ["git", "-C", repository, "-c", f"tar.umask={UMASK:03o}", "archive", f"--prefix={name}/"]
    run([*archive, f"--output={tarball}", "HEAD"])
    time = ["git", "-C", repository, "log", "-1", "--format=%ct"]
    seconds = subprocess.run(time, capture_output=True, text=True, check=True).stdout.strip()
    # archives of wheels have the time of the commit
    environment = {**os.environ, "SOURCE_DATE_EPOCH": seconds}
    with tempfile.TemporaryDirectory(dir=output.parent) as directory:
        tree = unpack(tarball, directory)
        for project in WHEELS:
            command = [python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
            run([*command, "--wheel-dir", output, tree / project], env=environment, umask=UMASK)
    files = sorted(path for path in output.iterdir())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (output / SUMS).write_text("".join(sums))


def unpack(tarball, directory):
    """Unpack a tarball, and return the one directory in it."""
    with tarfile.open(tarball) as archive:
        archive.extractall(directory, filter="data")
    return Path(directory, tarball.name[: -len(".tar.gz")])


def require_equal(first, second):
    """Raise TestbedError unless two builds have the same files with the same content."""
    lines = [set((directory / SUMS).read_text().splitlines()) for directory in (first, second)]
    different = {line.split()[1] for line in lines[0] ^ lines[1]}
    if different:
        raise TestbedError(f"two builds differ: {', '.join(sorted(different))}. Report it.")


def run_demo(files, directory):
    """Run ./demo of the tarball without git, in a directory and a testbed of its own."""
    directory.mkdir()
    tree = unpack(next(files.glob("*.tar.gz")), directory)
    environment = {**os.environ, ROOT_VARIABLE: str(directory / "testbed")}
    for arguments in ([], ["--clean"]):
        result = subprocess.run([tree / "demo", *arguments], cwd="/", env=environment, check=False)
        if result.returncode:
            raise TestbedError("./demo of the tarball failed. See the output above.")


if __name__ == "__main__":
    again = "Run the same command again."
    sys.exit(exit_status(lambda: main(sys.argv[1:]), program="tools/release", again=again))
