"""Installations that are killed: no broken module, no files left, and the next `eb` succeeds."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from install_prefix import INSTALLING, kill_at, one_error, remove_lock, with_image
from waiting import wait_for

pytestmark = pytest.mark.testbed


@pytest.mark.parametrize(
    ("hook", "works"),
    [
        ("module_write_hook(block, path, text): '/all/' in path and die()", False),
        ("pre_permissions_hook(block): die()", True),
    ],
)
def test_a_rebuild_that_is_killed_leaves_no_broken_module_and_the_next_succeeds(installed, hook, works):
    """tests/unit/easyblocks/test_transaction.py kills it at each change of the disk."""
    kill_at(installed, hook)
    assert installed.works() is works
    assert f"Lock {installed.lock} already exists, aborting!" in one_error(installed.eb("--rebuild"))
    remove_lock(installed)
    result = installed.eb("--rebuild" if works else "")
    assert result.returncode == 0, result.stderr
    assert installed.works()
    assert installed.leftovers() + installed.builds() == []


def test_after_a_kill_even_an_installation_that_fails_early_restores_the_old_one(installed):
    kill_at(installed, "pre_sanitycheck_hook(block): die()")
    assert not installed.works()
    remove_lock(installed)
    hooks = installed.directory / "hooks.py"
    hooks.write_text("def post_fetch_hook(block): raise OSError('no luck')\n")
    assert "no luck" in installed.eb(f"--hooks={hooks}").stderr
    assert installed.works()
    assert installed.leftovers() == []


def test_a_rebuild_keeps_an_unchanged_image_even_after_a_kill_and_replaces_a_damaged_one(testbed, small_image, work):
    prefix, checksum = with_image(testbed, small_image, work)
    assert prefix.eb().returncode == 0
    installed = prefix.installation / "tiny.sif"
    inode = installed.stat().st_ino
    (prefix.installation / "runscripts" / "get-master").unlink()

    # a running job keeps the files that it was started with
    started = work / "started"
    go_on = work / "go-on"
    wait = f"touch {started}; until [ -e {go_on} ]; do sleep 0.1; done; ls /payload/mnist_ddp.py /runscripts/ddp-env"
    with ThreadPoolExecutor() as threads:
        try:
            running = threads.submit(testbed.run, f"{prefix.load}; singularity exec $SIF sh -c '{wait}'")
            wait_for(started.exists)
            kill_at(prefix, INSTALLING)
            assert not prefix.works()
            remove_lock(prefix)
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
