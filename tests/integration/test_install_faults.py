"""Whatever ends an installation, or happens beside it: no broken module, nothing left, and the next `eb` works."""

import base64
import hashlib
import json
import re
import shlex
import shutil
import signal
import socket
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from testbed.processes import is_running

pytestmark = pytest.mark.testbed

#: What all easyblocks have in common is tried with the one whose runtime is elsewhere: it installs in seconds.
TINY = "1.0-tiny"
SHIFTER = """easyblock = 'EB_PyTorchShifter'
image = 'tiny'
"""

#: A venv whose torch is one file.
VENV = "1.0-venv"
WHEELS = """easyblock = 'EB_PyTorchVenv'
sources = ['tiny.txt']
checksums = ['{checksum}']
"""

#: A whole image, under another name.
IMAGE = """easyblock = 'EB_PyTorchContainer'
sources = ['tiny.sif']
checksums = ['{checksum}']
"""

RECIPE = """{runtime}name = 'PyTorch'
version = '1.0'
versionsuffix = '-{suffix}'
homepage = 'https://pytorch.org'
description = "A stand-in for the tests of installations."
toolchain = SYSTEM
sanity_check_commands = ['conda-python-simple -c pass']
moduleclass = 'ai'
"""

#: EasyBuild's hooks, which end it at one point: with its process group, or alone while what it started lives on.
HOOKS = """import os, signal, subprocess
QUIET = {{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}}
def die():
    os.{how}
def {hook}
"""
#: A point at which half of the installation is there.
INSTALLING = "pre_run_shell_cmd_hook(cmd, *_, **__): 'compile_tree' in cmd and die()"


class Prefix:
    """A place of its own to install a recipe to."""

    def __init__(self, testbed, directory, version):
        self.testbed = testbed
        self.directory = directory
        self.version = version
        self.module = f"PyTorch/{version}"
        self.installation = directory / "software" / self.module
        self.lock = directory / "software" / ".locks" / f"{str(self.installation).replace('/', '_')}.lock"

    def write_recipe(self, runtime):
        """Write the recipe of this version."""
        text = RECIPE.format(runtime=runtime, suffix=self.version.partition("-")[2])
        (self.directory / f"PyTorch-{self.version}.eb").write_text(text)

    def command(self, *options):
        """Shell code that installs; EasyBuild is the leader of a process group that can be killed."""
        own = f"--installpath={self.directory} --buildpath={self.directory}/build --sourcepath={self.directory}/sources"
        own += f" --repositorypath={self.directory}/repository"
        return f"""PATH={self.directory}/bin:$PATH
setsid --wait eb {own} {' '.join(options)} {self.directory}/PyTorch-{self.version}.eb"""

    def eb(self, *options):
        """Install; return the finished process."""
        return self.testbed.run_unchecked(self.command(*options))

    def works(self):
        """Whether there is a module, and Python starts with it; fails if there is a broken one."""
        if not list(self.directory.glob(f"modules/all/{self.module}*")):
            return False
        self.testbed.run(f"""PATH={self.directory}/bin:$PATH
            module use {self.directory}/modules/all; module load {self.module}; conda-python-simple -c pass""")
        return True

    def leftovers(self):
        """What is there and belongs to no complete installation."""
        kept = {".user-software", f".{self.version}.replaced"}  # the latter for running containers
        hidden = [path for path in self.installation.parent.glob(".*") if path.name not in kept]
        parts = [path for top in ("software", "modules") for path in self.directory.glob(f"{top}/**/*.part")]
        return [*hidden, *parts, *self.directory.glob("software/.locks/*")]

    def builds(self):
        """Build directories; that of an installation that failed is there to be looked at, until the next."""
        return list(self.directory.glob("build/*"))


def wheel(path):
    """Write a wheel of a torch that can be imported; return its SHA-256."""
    files = {
        "torch/__init__.py": "__version__ = '1.0'\n",
        "torch-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n",
        "torch-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ["torch-1.0.dist-info/RECORD,,\n"]
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        record.append(f"{name},sha256={digest},{len(text)}\n")
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, "torch-1.0.dist-info/RECORD": "".join(record)}.items():
            archive.writestr(name, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def prefix(testbed, tmp_path_factory):
    """A prefix with a recipe and nothing installed; tests may leave a complete installation in it."""
    directory = tmp_path_factory.mktemp("prefix")
    shifter = directory / "bin" / "shifter"
    shifter.parent.mkdir()
    shifter.write_text('#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nSHIFTER_IMAGEREQUEST=tiny exec "$@"\n')
    shifter.chmod(0o755)
    prefix = Prefix(testbed, directory, TINY)
    prefix.write_recipe(SHIFTER)
    return prefix


@pytest.fixture
def installed(prefix):
    """The prefix with a complete installation in it."""
    if not prefix.works():
        result = prefix.eb()
        assert result.returncode == 0, result.stderr
    return prefix


def kill_at(prefix, hook, how):
    """Run ``eb --rebuild`` with a hook that kills it."""
    hooks = prefix.directory / "hooks.py"
    hooks.write_text(HOOKS.format(hook=hook, how=how))
    result = prefix.eb("--rebuild", f"--hooks={hooks}")
    assert result.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), result.stdout


@pytest.mark.parametrize(
    ("hook", "old_works"),
    [
        pytest.param("post_fetch_hook(block): die()", True, id="after fetching"),
        pytest.param("pre_build_hook(block): die()", True, id="in the build step"),
        pytest.param(INSTALLING, False, id="installing"),
        pytest.param("pre_sanitycheck_hook(block): die()", False, id="in the sanity check"),
        pytest.param("module_write_hook(block, path, text): '/all/' in path and die()", False, id="in the module step"),
        pytest.param("pre_permissions_hook(block): die()", True, id="after the module"),
    ],
)
def test_a_rebuild_killed_at_any_point_leaves_no_broken_module_and_the_next_works(installed, hook, old_works):
    kill_at(installed, hook, "killpg(0, signal.SIGKILL)")
    assert installed.works() is old_works
    result = installed.eb("--rebuild" if old_works else "")
    assert result.returncode == 0, result.stderr
    assert "which was killed" in result.stdout
    assert installed.works()
    assert installed.leftovers() + installed.builds() == []


def test_what_a_killed_installation_had_started_is_ended_before_the_next_begins(installed):
    noted = installed.directory / "pid"
    child = f"exec bash -c 'echo $$ >{noted}.part; mv {noted}.part {noted}; exec sleep 300'"
    hook = f"""pre_run_shell_cmd_hook(cmd, *_, **__):
    if 'compile_tree' in cmd:
        subprocess.Popen({child!r}, shell=True, start_new_session=True, **QUIET)
        while not os.path.exists({str(noted)!r}): pass
        die()"""
    kill_at(installed, hook, "kill(os.getpid(), signal.SIGKILL)")
    process = int(noted.read_text())
    assert is_running(process)
    result = installed.eb()
    assert result.returncode == 0, result.stderr
    assert re.search(r"which was killed, and \d+ processes that it had started", result.stdout)
    assert not is_running(process)


def test_after_a_kill_even_an_installation_that_fails_early_brings_the_old_one_back(installed):
    kill_at(installed, "pre_sanitycheck_hook(block): die()", "killpg(0, signal.SIGKILL)")
    assert not installed.works()
    hooks = installed.directory / "hooks.py"
    hooks.write_text("def post_fetch_hook(block): raise OSError('no luck')\n")
    assert "no luck" in one_error(installed.eb(f"--hooks={hooks}"))
    assert installed.works()
    assert installed.leftovers() == []


def test_a_rebuild_that_fails_leaves_the_old_installation_as_it_was(installed):
    before = installed.installation.stat().st_ino
    hooks = installed.directory / "hooks.py"
    hooks.write_text("def pre_sanitycheck_hook(block): raise OSError('no luck')\n")
    result = installed.eb("--rebuild", f"--hooks={hooks}")
    assert "no luck" in one_error(result)
    assert installed.works()
    assert installed.installation.stat().st_ino == before
    assert installed.leftovers() == []


def test_of_two_at_once_the_second_says_who_is_at_it_or_waits_if_asked(installed):
    go_on, begun, output = (installed.directory / name for name in ("go-on", "begun", "output"))
    hooks = installed.directory / "hooks.py"
    hooks.write_text(f"""import os, time
def pre_build_hook(block):
    open({str(begun)!r}, "w")
    while not os.path.exists({str(go_on)!r}): time.sleep(0.1)
""")
    waiting = installed.command("--rebuild", "--wait-on-lock-limit=-1", "--wait-on-lock-interval=1")
    with ThreadPoolExecutor() as threads:
        try:
            first = threads.submit(installed.eb, "--rebuild", f"--hooks={hooks}")
            wait_for(begun.exists)
            second = installed.eb("--rebuild")
            third = threads.submit(installed.testbed.run_unchecked, f"{waiting} >{output}")
            wait_for(lambda: output.exists() and "waiting 1 seconds" in output.read_text())
        finally:
            go_on.touch()
    holder = rf"{installed.module} is being installed by process \d+ of \w+ on {socket.gethostname()}, for "
    assert re.search(holder, one_error(second))
    assert "--wait-on-lock-limit=-1" in one_error(second)
    for result in (first.result(), third.result()):
        assert result.returncode == 0, result.stderr
    assert installed.works()
    assert installed.leftovers() == []


def with_image(testbed, container, directory):
    """A prefix with a recipe of an image, that of the container module; and its SHA-256."""
    image = testbed.run(f"module load {container}; echo $SIF").strip()
    prefix = Prefix(testbed, directory, "1.0-image")
    (directory / "tiny.sif").symlink_to(image)
    checksum = testbed.run(f"sha256sum {image}").split()[0]
    prefix.write_recipe(IMAGE.format(checksum=checksum))
    return prefix, checksum


def test_a_rebuild_keeps_an_image_that_is_the_same_even_after_a_kill_and_replaces_one_that_is_damaged(
    testbed, container, work
):
    prefix, checksum = with_image(testbed, container, work)
    assert prefix.eb().returncode == 0
    installed = prefix.installation / "tiny.sif"
    inode = installed.stat().st_ino
    (prefix.installation / "runscripts" / "get-master").unlink()

    # of a job: what it was started with stays whole
    started, go_on = work / "started", work / "go-on"
    wait = f"touch {started}; until [ -e {go_on} ]; do sleep 0.1; done; ls /payload/mnist_ddp.py /runscripts/ddp-env"
    with ThreadPoolExecutor() as threads:
        try:
            running = threads.submit(
                testbed.run,
                f"module use {work}/modules/all; module load {prefix.module}; singularity exec $SIF sh -c '{wait}'",
            )
            wait_for(started.exists)
            kill_at(prefix, INSTALLING, "killpg(0, signal.SIGKILL)")
            assert not prefix.works()
            result = prefix.eb("--rebuild")
        finally:
            go_on.touch()
    assert running.result().split() == ["/payload/mnist_ddp.py", "/runscripts/ddp-env"]
    assert result.returncode == 0, result.stderr
    assert "the installed one is the same, it is kept" in result.stdout
    assert installed.stat().st_ino == inode
    assert (prefix.installation / "runscripts" / "get-master").exists()
    assert prefix.leftovers() == []

    with installed.open("r+b") as file:
        file.seek(100_000_000)
        file.write(b"damage")
    result = prefix.eb("--rebuild")
    assert result.returncode == 0, result.stderr
    assert "is damaged" in result.stderr
    assert installed.stat().st_ino != inode
    assert testbed.run(f"sha256sum {installed}").split()[0] == checksum


ELSEWHERE = {"host": "nid009999", "boot": "another", "pid": 77, "started": 1, "uid": 0, "user": "mary"}


@pytest.mark.parametrize(
    ("holder", "named"),
    [
        pytest.param(ELSEWHERE, "process 77 of mary on nid009999, for ", id="on another host"),
        pytest.param(None, "another `eb`, which left no note who it is, for ", id="unknown"),
    ],
)
def test_a_lock_whose_holder_cannot_be_seen_from_here_is_explained_and_kept(prefix, holder, named):
    prefix.lock.mkdir(parents=True)
    try:
        if holder:
            (prefix.lock / "holder.json").write_text(json.dumps(holder))
        error = one_error(prefix.eb("--rebuild"))
        assert named in error
        assert f"if it is not running any more: rm -r '{prefix.lock}'" in error
        assert prefix.lock.exists()
    finally:
        shutil.rmtree(prefix.lock)


def with_wheel(testbed, directory):
    """A prefix with a recipe of one wheel."""
    prefix = Prefix(testbed, directory, VENV)
    wheels = directory / "sources" / "p" / "PyTorch" / "wheels"
    wheels.mkdir(parents=True)
    lock = directory / "tiny.txt"
    lock.write_text(f"torch==1.0 --hash=sha256:{wheel(wheels / 'torch-1.0-py3-none-any.whl')}\n")
    prefix.write_recipe(WHEELS.format(checksum=hashlib.sha256(lock.read_bytes()).hexdigest()))
    return prefix


@pytest.mark.parametrize("kind", ["venv", "image"])
def test_a_full_disk_is_one_sentence_and_leaves_nothing_and_the_next_works(testbed, work, kind, request):
    if testbed.run_unchecked("unshare --mount mount -t tmpfs none /mnt").returncode != 0:
        pytest.skip("only root may mount the small file system, and not everywhere")
    if kind == "venv":
        prefix, runtime, room = with_wheel(testbed, work), "venv/bin/python", "100m"
    else:
        prefix, _ = with_image(testbed, request.getfixturevalue("container"), work)
        runtime, room = "tiny.sif", "2g"
    software = work / "software"
    software.mkdir()
    runtime = prefix.installation / runtime
    # mounted for this one shell, and gone with it
    script = f"""
        mount -t tmpfs -o size=8m none {software}
        {prefix.command("--rebuild")} >/dev/null || echo failed
        find {software} -type f
        mount -o remount,size={room} {software}
        {prefix.command("--rebuild")} >/dev/null && ls {runtime}"""
    result = prefix.testbed.run_unchecked(f"unshare --mount bash -c {shlex.quote(script)}")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["failed", str(runtime)]
    # as sure as what failed is: `python -m venv` keeps the reason to itself
    assert re.search("No space is left|perhaps for want of space", one_error(result))
    assert f"MB for software in {software}" in one_error(result)


def one_error(result):
    """The one line of error among all that was said."""
    lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
    assert len(lines) == 1, result.stderr
    return lines[0]


def wait_for(condition):
    """Return when the condition is true, or fail after a minute."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
