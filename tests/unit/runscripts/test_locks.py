"""Old locks of torch's extensions."""

import os

from pytorch_launch.locks import old_locks


def test_an_old_lock_of_an_extension_is_named_with_the_line_that_removes_it_and_stays(tmp_path):
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    assert old_locks({}) == old_locks({"TORCH_EXTENSIONS_DIR": str(tmp_path / "absent")}) == old_locks(env) == []
    for extension, minutes in (("killed", 31), ("compiled", 29)):
        (tmp_path / extension).mkdir()
        lock = tmp_path / extension / "lock"
        lock.touch()
        changed = lock.stat().st_mtime - 60 * minutes
        os.utime(lock, (changed, changed))
    (tmp_path / "done").mkdir()
    (tmp_path / "file").touch()
    (problem,) = old_locks(env)
    lock = tmp_path / "killed" / "lock"
    assert str(problem).startswith(f"{lock}: an old lock (31 minutes): what loads this extension may wait for ever. ")
    assert str(problem).endswith(f"If no job compiles it now: rm {lock}")
    assert lock.exists()
