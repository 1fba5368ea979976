"""Installations that fail or fill the disk: the old installation stays."""

import shlex

import pytest
from install_prefix import with_image, with_wheel

pytestmark = pytest.mark.testbed


@pytest.mark.parametrize("end", ["raise OSError('no luck')", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_a_failed_rebuild_leaves_the_old_installation_unchanged(installed, end):
    before = installed.installation.stat().st_ino
    hooks = installed.directory / "hooks.py"
    hooks.write_text(f"import os, signal\ndef pre_sanitycheck_hook(block): {end}\n")
    result = installed.eb("--rebuild", f"--hooks={hooks}")
    assert result.returncode != 0
    assert installed.works()
    assert installed.installation.stat().st_ino == before
    assert installed.leftovers() == []


@pytest.mark.parametrize("kind", ["venv", pytest.param("image", marks=pytest.mark.thorough)])
def test_a_full_disk_leaves_nothing_and_the_next_installation_succeeds(testbed, work, kind, request):
    if testbed.run_unchecked("unshare --mount mount -t tmpfs none /mnt").returncode != 0:
        pytest.skip("only root may mount the small file system, and not everywhere")
    if kind == "venv":
        prefix = with_wheel(testbed, work)
        runtime = prefix.installation / "venv/bin/python"
    else:
        prefix, _ = with_image(testbed, request.getfixturevalue("small_image"), work)
        runtime = prefix.installation / "tiny.sif"
    software = work / "software"
    software.mkdir()
    # mounted in this shell only
    script = f"""
        mount -t tmpfs -o size=8m none {software}
        {prefix.command("--rebuild")} >/dev/null || echo failed
        find {software} -type f
        mount -o remount,size=2g {software}
        {prefix.command("--rebuild")} >/dev/null && ls {runtime}"""
    result = prefix.testbed.run_unchecked(f"unshare --mount bash -c {shlex.quote(script)}")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["failed", str(runtime)]
