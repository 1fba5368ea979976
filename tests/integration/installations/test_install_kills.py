"""Installations that are killed: no broken module, no files left, and the next `eb` succeeds."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from install_prefix import COMPILES, INSTALLING, kill_at, one_error, wait_for, with_image

from testbed.processes import is_running

pytestmark = pytest.mark.testbed


@pytest.mark.parametrize(
    ("hook", "old_works"),
    [
        pytest.param("post_fetch_hook(block): die()", True, id="after fetching", marks=pytest.mark.thorough),
        pytest.param("pre_build_hook(block): die()", True, id="in the build step"),
        pytest.param(INSTALLING, False, id="installing"),
        pytest.param("pre_sanitycheck_hook(block): die()", False, id="in the sanity check"),
        pytest.param("module_write_hook(block, path, text): '/all/' in path and die()", False, id="in the module step"),
        pytest.param("pre_permissions_hook(block): die()", True, id="after the module"),
    ],
)
def test_a_rebuild_killed_at_any_point_leaves_no_broken_module_and_the_next_succeeds(installed, hook, old_works):
    kill_at(installed, hook, "killpg(0, signal.SIGKILL)")
    assert installed.works() is old_works
    result = installed.eb("--rebuild" if old_works else "")
    assert result.returncode == 0, result.stderr
    assert "which was killed" in result.stdout
    assert installed.works()
    assert installed.leftovers() + installed.builds() == []


def test_processes_of_a_killed_installation_are_ended_before_the_next_begins(installed):
    noted = installed.directory / "pid"
    child = f"exec bash -c 'echo $$ >{noted}.part; mv {noted}.part {noted}; exec sleep 3600'"
    hook = f"""pre_run_shell_cmd_hook(cmd, *_, **__):
    if {COMPILES}:
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


def test_after_a_kill_even_an_installation_that_fails_early_restores_the_old_one(installed):
    kill_at(installed, "pre_sanitycheck_hook(block): die()", "killpg(0, signal.SIGKILL)")
    assert not installed.works()
    hooks = installed.directory / "hooks.py"
    hooks.write_text("def post_fetch_hook(block): raise OSError('no luck')\n")
    assert "no luck" in one_error(installed.eb(f"--hooks={hooks}"))
    assert installed.works()
    assert installed.leftovers() == []


def test_a_rebuild_keeps_an_unchanged_image_even_after_a_kill_and_replaces_a_damaged_one(
    testbed, small_image, work
):
    prefix, checksum = with_image(testbed, small_image, work)
    assert prefix.eb().returncode == 0
    installed = prefix.installation / "tiny.sif"
    inode = installed.stat().st_ino
    (prefix.installation / "runscripts" / "get-master").unlink()

    # a running job keeps the files that it was started with
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
        file.seek(installed.stat().st_size // 2)
        file.write(b"damage")
    result = prefix.eb("--rebuild")
    assert result.returncode == 0, result.stderr
    assert "is damaged" in result.stderr
    assert installed.stat().st_ino != inode
    assert testbed.run(f"sha256sum {installed}").split()[0] == checksum
