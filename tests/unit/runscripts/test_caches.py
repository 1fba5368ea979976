"""Caches go to private directories of this user, job and node, and avoid those that other users can prepare."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from pytorch_launch.caches import SUBDIRECTORIES, choose_caches, make_caches, old_locks

UID = os.geteuid()
KEY = "7-nid001003"


def place(env, uid, key, create, **default):
    """The directory of the caches, their variables, all warnings; with `create` they are made."""
    directory, variables, warnings = choose_caches(env, uid, key, **default)
    directory, variables, more = make_caches(directory, variables) if create else (directory, variables, [])
    return directory, variables, [*map(str, warnings), *map(str, more)]


def usual(base):
    return base / f"pytorch-{UID}" / KEY


def everything_in(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def assert_private(directory):
    status = directory.lstat()
    assert stat.S_ISDIR(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o700
    assert status.st_uid == UID


def assert_elsewhere_and_private(base, directory, variables):
    """The caches are under `base`, but not where an attacker could expect them."""
    root = Path(directory).parent
    assert directory == str(root / KEY)
    assert root.parent == base
    assert root != base / f"pytorch-{UID}"
    assert variables == {name: f"{directory}/{sub}" for name, sub in SUBDIRECTORIES.items()}
    for path in (root, root / KEY, *map(Path, variables.values())):
        assert_private(path)


@pytest.mark.parametrize("umask", [0o022, 0])
def test_each_cache_gets_a_private_directory_of_its_job_and_node_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        directory, variables, warnings = place({"TMPDIR": str(tmp_path)}, UID, KEY, create=True)
    finally:
        os.umask(before)
    assert (directory, warnings) == (str(usual(tmp_path)), [])
    assert variables == {name: f"{directory}/{sub}" for name, sub in SUBDIRECTORIES.items()}
    assert len(set(variables.values())) == len(variables) == 6
    for path in (tmp_path / f"pytorch-{UID}", *(tmp_path / f"pytorch-{UID}").rglob("*")):
        assert_private(path)


def test_many_ranks_at_once_do_not_get_in_each_others_way(tmp_path, runscripts):
    program = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from pytorch_launch.caches import choose_caches, make_caches\n"
        "sys.stdin.readline()\n"
        "directory, _, warnings = make_caches(*choose_caches({'TMPDIR': sys.argv[2]}, os.geteuid(), '7-n')[:2])\n"
        "print((directory, warnings))"
    )
    command = [sys.executable, "-I", "-S", "-c", program, runscripts, tmp_path]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    ranks = [subprocess.Popen(command, text=True, **pipes) for _ in range(16)]
    for rank in ranks:
        rank.stdin.write("go\n")
        rank.stdin.flush()
    answers = {rank.communicate()[0] for rank in ranks}
    assert answers == {f"('{tmp_path}/pytorch-{UID}/7-n', [])\n"}


def test_caches_are_private_too_if_another_jobs_epilog_removes_their_directory(tmp_path, monkeypatch):
    removed, real = [], os.mkdir

    def mkdir(path, mode):
        real(path, mode)
        if not removed:
            Path(path).rmdir()
            removed.append(path)

    monkeypatch.setattr("posix.mkdir", mkdir)
    directory, variables, warnings = place({"TMPDIR": str(tmp_path)}, UID, KEY, create=True)
    assert (removed, len(warnings)) == ([str(tmp_path / f"pytorch-{UID}")], 1)
    assert_elsewhere_and_private(tmp_path, directory, variables)


ALL = dict.fromkeys(SUBDIRECTORIES, "/mine")
#: Those of a launch whose rank submitted this job: of another job, and another user may have made them here first.
OTHERS = {name: f"/local/pytorch-{UID}-x1/6-nid1/{sub}" for name, sub in SUBDIRECTORIES.items()}


@pytest.mark.parametrize(
    ("env", "kept"),
    [
        ({"TRITON_CACHE_DIR": "/mine", "CUDA_CACHE_PATH": ""}, {"TRITON_CACHE_DIR"}),
        ({**OTHERS, "TRITON_CACHE_DIR": f"/local/pytorch-{UID}/6-nid1/mine"}, {"TRITON_CACHE_DIR"}),
        (ALL, set(ALL)),
    ],
)
def test_a_cache_that_the_user_placed_stays_and_gets_no_directory(tmp_path, env, kept):
    tmpdir = str(tmp_path) if kept != set(ALL) else "/does/not/exist"  # nothing is said of it
    _, variables, warnings = place({**env, "TMPDIR": tmpdir}, UID, KEY, create=True, default=str(tmp_path))
    placed = {name: sub for name, sub in SUBDIRECTORIES.items() if name not in kept}
    assert (variables, warnings) == ({name: f"{usual(tmp_path)}/{sub}" for name, sub in placed.items()}, [])
    assert {path.name for path in tmp_path.glob("*/*/*")} == set(placed.values())


needs_root = pytest.mark.skipif(UID != 0, reason="only root can make another user's directory")
OTHER = 4242


def given_to(directory, user, mode):
    directory.mkdir(parents=True, exist_ok=True)
    os.chown(directory, user, user)
    directory.chmod(mode)
    return directory


REASONS = {"absent": "No such file or directory", "file": "Not a directory", "open": "sticky bit"}
REASONS.update({"open/below": "sticky bit", "locked": "not writable", None: "not an absolute path"})
#: Of another user: a public directory; one that was made in root's, and a link there to a directory of the user's own.
OF_OTHERS = {"theirs": f"theirs belongs to user {OTHER}, who can replace what is in it"}
OF_OTHERS.update({f"public/{name}//tmp/./": f"public/{name} belongs to another user" for name in ("made", "link")})


@pytest.mark.parametrize("name", [*REASONS, *(pytest.param(name, marks=needs_root) for name in OF_OTHERS)])
def test_an_unusable_tmpdir_is_said_and_replaced(tmp_path, monkeypatch, name):
    (tmp_path / "file").write_text("")
    for directory in ("open/below", "locked", "default", "own/tmp", "public/made/tmp"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    if name in OF_OTHERS:
        (tmp_path / "public").chmod(0o1777)
        (tmp_path / "public/link").symlink_to(tmp_path / "own", target_is_directory=True)
        for path, mode in (("theirs", 0o1777), ("public/made", 0o755)):
            given_to(tmp_path / path, OTHER, mode)
        os.chown(tmp_path / "public/link", OTHER, OTHER, follow_symlinks=False)
    monkeypatch.setattr("posix.access", lambda path, _mode: str(path) != str(tmp_path / "locked"))
    tmpdir = f"{tmp_path}/{name}" if name else "scratch"
    directory, _, (warning,) = place({"TMPDIR": tmpdir}, UID, KEY, create=True, default=str(tmp_path / "default"))
    assert directory == str(usual(tmp_path / "default"))
    assert warning.startswith(f"cannot use {tmpdir} for caches: ") and {**REASONS, **OF_OTHERS}[name] in warning


@pytest.mark.parametrize("mode", [0o1777, 0o770], ids=["of everybody, with the sticky bit", "of a group"])
def test_a_directory_of_several_users_is_usable(tmp_path, mode):
    tmp_path.chmod(mode)
    directory, _, warnings = place({"TMPDIR": f"{tmp_path}/"}, UID, KEY, create=True)
    assert (directory, warnings) == (str(usual(tmp_path)), [])


def test_where_no_directory_will_do_or_the_file_system_refuses_caches_stay_where_they_are(tmp_path):
    absent, other = str(tmp_path / "absent"), str(tmp_path / "other")
    found = place({"TMPDIR": absent}, UID, KEY, create=True, default=other)
    assert found[:2] == (None, {})
    assert [each.split(":")[0] for each in found[2]] == [f"cannot use {path} for caches" for path in (absent, other)]
    directory, variables, (warning,) = place({"TMPDIR": str(tmp_path)}, UID, "7-" + "n" * 300, create=True)
    assert (directory, variables) == (None, {}) and "File name too long" in warning


def test_an_old_lock_of_an_extension_is_named_with_the_line_that_removes_it_and_stays(tmp_path):
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    assert old_locks({}) == old_locks({"TORCH_EXTENSIONS_DIR": str(tmp_path / "absent")}) == old_locks(env) == []
    for name, minutes in (("killed", 31), ("compiled", 29), ("done", None)):
        (tmp_path / name).mkdir()
        if minutes:
            (tmp_path / name / "lock").touch()
            changed = (tmp_path / name / "lock").stat().st_mtime - 60 * minutes
            os.utime(tmp_path / name / "lock", (changed, changed))
    (tmp_path / "file").touch()
    (problem,) = old_locks(env)
    lock = tmp_path / "killed" / "lock"
    assert str(problem).startswith(f"{lock}: an old lock (31 minutes): what loads this extension may wait for ever. ")
    assert str(problem).endswith(f"If no job compiles it now: rm {lock}")
    assert lock.exists()


def test_a_tmpdir_that_the_image_does_not_see_is_told_the_bind(tmp_path):
    env = {"TMPDIR": "/job/tmp", "APPTAINER_CONTAINER": "/image.sif"}
    _, _, (warning,) = place(env, UID, KEY, create=False, default=str(tmp_path))
    assert warning.endswith("No such file or directory. Bind it: `export APPTAINER_BIND=$APPTAINER_BIND,/job/tmp`")
    _, _, (warning,) = place({"TMPDIR": "/job/tmp"}, UID, KEY, create=False, default=str(tmp_path))
    assert warning.endswith("No such file or directory. Export another TMPDIR")


def in_the_way(base, kind):
    """What another user, or a mistake, put where the caches go, and why it is not used."""
    (base / "trap").mkdir(mode=0o700)
    top = base / f"pytorch-{UID}"
    if kind == "link":
        top.symlink_to(base / "trap")
        return f"{top} is not a directory"
    if kind == "link below":
        usual(base).mkdir(parents=True)
        top.chmod(0o700)
        usual(base).chmod(0o700)
        (usual(base) / "triton").symlink_to(base / "trap")
        return "triton is not a directory"
    if kind == "file":
        top.write_text("precious")
        return f"{top} is not a directory"
    if kind == "other user":
        given_to(top, OTHER, 0o700)
        return f"{top} belongs to user {OTHER}"
    top.mkdir()
    top.chmod(kind)
    return f"open to others, mode {kind:04o}"


@pytest.mark.parametrize(
    "kind",
    [
        *("link", "link below", "file", 0o777, 0o1777, 0o720, 0o701, 0o750),
        pytest.param("other user", marks=needs_root),
    ],
)
def test_what_is_in_the_way_is_not_followed_or_changed_and_each_rank_gets_another_name(tmp_path, kind):
    reason = in_the_way(tmp_path, kind)
    before = everything_in(tmp_path)
    used = set()
    for _ in range(2):
        directory, variables, warnings = place({"TMPDIR": str(tmp_path)}, UID, KEY, create=True)
        assert_elsewhere_and_private(tmp_path, directory, variables)
        (warning,) = warnings
        assert reason in warning and directory.rsplit("/", 1)[0] in warning
        used.add(directory)
    assert len(used) == 2
    assert set(everything_in(tmp_path / "trap")) == set()
    left = [name for name in everything_in(tmp_path) if not any(name.startswith(Path(x).parent.name) for x in used)]
    assert left == before or kind == "link below"  # the directories of the caches before the link are made


@needs_root
def test_in_a_user_namespace_roots_directories_belong_to_nobody_and_are_used(tmp_path, monkeypatch):
    monkeypatch.setattr("pytorch_launch.caches.read", {"/proc/self/uid_map": "4711 4711 1"}.get)
    public = given_to(tmp_path / "public", 65534, 0o1777)
    directory, _, warnings = place({"TMPDIR": str(public)}, UID, KEY, create=True)
    assert (directory, warnings) == (str(usual(public)), [])
