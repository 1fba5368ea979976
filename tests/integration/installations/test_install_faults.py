"""Installations that fail, run at the same time, or fill the disk: the old installation stays."""

import shlex
from concurrent.futures import ThreadPoolExecutor

import pytest
from install_prefix import one_error, with_image, with_wheel
from waiting import wait_for

pytestmark = pytest.mark.testbed


#: How a rebuild ends: with an error, or with a signal that can be caught, which frees the lock.
ENDS = {"error": "raise OSError('no luck')"}
ENDS.update((name, f"os.kill(os.getpid(), signal.{name})") for name in ("SIGTERM", "SIGINT", "SIGQUIT", "SIGABRT"))


@pytest.mark.parametrize(
    "end",
    [pytest.param(name, marks=[] if name in ("error", "SIGTERM") else pytest.mark.thorough) for name in ENDS],
)
def test_a_failed_rebuild_leaves_the_old_installation_unchanged(installed, end):
    before = installed.installation.stat().st_ino
    hooks = installed.directory / "hooks.py"
    hooks.write_text(f"import os, signal\ndef pre_sanitycheck_hook(block): {ENDS[end]}\n")
    result = installed.eb("--rebuild", f"--hooks={hooks}")
    assert result.returncode != 0
    assert end != "error" or "no luck" in result.stderr
    assert installed.works()
    assert installed.installation.stat().st_ino == before
    assert installed.leftovers() == []


def test_a_second_installation_ends_with_an_error_or_waits_with_an_option(installed):
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
    assert f"Lock {installed.lock} already exists, aborting!" in one_error(second)
    for result in (first.result(), third.result()):
        assert result.returncode == 0, result.stderr
    assert installed.works()
    assert installed.leftovers() == []


@pytest.mark.parametrize("kind", ["venv", pytest.param("image", marks=pytest.mark.thorough)])
def test_a_full_disk_leaves_nothing_and_the_next_installation_succeeds(testbed, work, kind, request):
    if testbed.run_unchecked("unshare --mount mount -t tmpfs none /mnt").returncode != 0:
        pytest.skip("only root may mount the small file system, and not everywhere")
    if kind == "venv":
        prefix, runtime, room = with_wheel(testbed, work), "venv/bin/python", "100m"
    else:
        prefix, _ = with_image(testbed, request.getfixturevalue("small_image"), work)
        runtime, room = "tiny.sif", "2g"
    software = work / "software"
    software.mkdir()
    runtime = prefix.installation / runtime
    # mounted in this shell only
    script = f"""
        mount -t tmpfs -o size=8m none {software}
        {prefix.command("--rebuild")} >/dev/null || echo failed
        find {software} -type f
        mount -o remount,size={room} {software}
        {prefix.command("--rebuild")} >/dev/null && ls {runtime}"""
    result = prefix.testbed.run_unchecked(f"unshare --mount bash -c {shlex.quote(script)}")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["failed", str(runtime)]
