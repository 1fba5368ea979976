"""Caches go to directories that no other user can prepare, read or write."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from pytorch_launch.caches import SUBDIRECTORIES, choose_caches, make_caches
from pytorch_launch.system import posix

UID = os.geteuid()
KEY = "7-nid001003"


def place(env, uid, key, create, **default):
    """The directory of the caches, their variables, all warnings; with `create` they are made."""
    chosen = choose_caches(env, uid, key, **default)
    caches = make_caches(chosen) if create else chosen.replace(warnings=[])
    return caches.directory, caches.variables, [*map(str, chosen.warnings), *map(str, caches.warnings)]


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


def test_each_cache_gets_a_private_directory(tmp_path):
    directory, variables, warnings = place({"TMPDIR": str(tmp_path)}, UID, KEY, create=True)
    assert warnings == []
    assert directory == str(usual(tmp_path))
    assert variables == {name: f"{directory}/{sub}" for name, sub in SUBDIRECTORIES.items()}
    assert len(set(variables.values())) == len(variables) == 6
    for path in (tmp_path / f"pytorch-{UID}", *(tmp_path / f"pytorch-{UID}").rglob("*")):
        assert_private(path)


def test_a_generous_umask_opens_nothing(tmp_path):
    before = os.umask(0)
    try:
        place({"TMPDIR": str(tmp_path)}, UID, KEY, create=True)
    finally:
        os.umask(before)
    for path in (tmp_path / f"pytorch-{UID}", *(tmp_path / f"pytorch-{UID}").rglob("*")):
        assert_private(path)


def test_without_create_nothing_is_written(tmp_path):
    planned = place({"TMPDIR": str(tmp_path)}, UID, KEY, create=False)
    assert everything_in(tmp_path) == []
    assert planned == place({"TMPDIR": str(tmp_path)}, UID, KEY, create=True)


def test_the_second_rank_of_a_node_finds_the_same_directories(tmp_path):
    first = place({"TMPDIR": str(tmp_path)}, UID, KEY, create=True)
    (usual(tmp_path) / "triton" / "kernel").write_text("compiled")
    assert place({"TMPDIR": str(tmp_path)}, UID, KEY, create=True) == first
    assert (usual(tmp_path) / "triton" / "kernel").read_text() == "compiled"


def test_jobs_and_nodes_have_directories_of_their_own(tmp_path):
    env = {"TMPDIR": str(tmp_path)}
    directories = {place(env, UID, key, create=True)[0] for key in ("7-a", "7-b", "8-a")}
    assert len(directories) == 3


def test_many_ranks_at_once_do_not_get_in_each_others_way(tmp_path, runscripts):
    program = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from pytorch_launch.caches import choose_caches, make_caches\n"
        "sys.stdin.readline()\n"
        "caches = make_caches(choose_caches({'TMPDIR': sys.argv[2]}, os.geteuid(), '7-n'))\n"
        "print((caches.directory, caches.warnings))"
    )
    ranks = [
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program, runscripts, tmp_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(16)
    ]
    for rank in ranks:
        rank.stdin.write("go\n")
        rank.stdin.flush()
    answers = {rank.communicate()[0] for rank in ranks}
    assert answers == {f"('{tmp_path}/pytorch-{UID}/7-n', [])\n"}


def test_a_cache_that_the_user_placed_stays_and_gets_no_directory(tmp_path):
    env = {"TMPDIR": str(tmp_path), "TRITON_CACHE_DIR": "/mine", "CUDA_CACHE_PATH": ""}
    _, variables, _ = place(env, UID, KEY, create=True)
    assert "TRITON_CACHE_DIR" not in variables
    assert "CUDA_CACHE_PATH" in variables
    assert not (usual(tmp_path) / "triton").exists()
    assert (usual(tmp_path) / "cuda").is_dir()


def test_where_the_user_placed_all_caches_nothing_is_created_or_said(tmp_path):
    env = dict.fromkeys(SUBDIRECTORIES, "/mine")
    env["TMPDIR"] = "/does/not/exist"
    assert place(env, UID, KEY, create=True, default=str(tmp_path)) == (None, {}, [])
    assert everything_in(tmp_path) == []


def test_a_symbolic_link_in_the_way_is_not_followed(tmp_path):
    trap = tmp_path / "trap"
    trap.mkdir(mode=0o700)
    base = tmp_path / "base"
    base.mkdir()
    (base / f"pytorch-{UID}").symlink_to(trap)
    directory, variables, warnings = place({"TMPDIR": str(base)}, UID, KEY, create=True)
    assert everything_in(trap) == []
    assert_elsewhere_and_private(base, directory, variables)
    assert len(warnings) == 1
    assert f"{base}/pytorch-{UID} is not a directory" in warnings[0]


def test_a_symbolic_link_deeper_down_is_not_followed_either(tmp_path):
    trap = tmp_path / "trap"
    trap.mkdir(mode=0o700)
    base = tmp_path / "base"
    usual(base).mkdir(parents=True, mode=0o700)
    (base / f"pytorch-{UID}").chmod(0o700)
    (usual(base) / "triton").symlink_to(trap)
    directory, variables, warnings = place({"TMPDIR": str(base)}, UID, KEY, create=True)
    assert everything_in(trap) == []
    assert_elsewhere_and_private(base, directory, variables)
    assert "triton is not a directory" in warnings[0]


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o720, 0o701, 0o750])
def test_a_directory_that_others_can_reach_is_not_used(tmp_path, mode):
    (tmp_path / f"pytorch-{UID}").mkdir()
    (tmp_path / f"pytorch-{UID}").chmod(mode)
    directory, variables, warnings = place({"TMPDIR": str(tmp_path)}, UID, KEY, create=True)
    assert everything_in(tmp_path / f"pytorch-{UID}") == []
    assert_elsewhere_and_private(tmp_path, directory, variables)
    assert f"open to others, mode {mode:04o}" in warnings[0]


def test_a_directory_of_another_user_is_not_used_and_its_owner_is_named(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory to another user")
    squatted = tmp_path / f"pytorch-{UID}"
    squatted.mkdir(mode=0o700)
    os.chown(squatted, 4242, -1)
    directory, variables, warnings = place({"TMPDIR": str(tmp_path)}, UID, KEY, create=True)
    assert everything_in(squatted) == []
    assert_elsewhere_and_private(tmp_path, directory, variables)
    assert f"{squatted} belongs to user 4242" in warnings[0]
    assert directory.rsplit("/", 1)[0] in warnings[0]


def test_a_file_in_the_way_is_left_alone(tmp_path):
    (tmp_path / f"pytorch-{UID}").write_text("precious")
    directory, variables, _ = place({"TMPDIR": str(tmp_path)}, UID, KEY, create=True)
    assert (tmp_path / f"pytorch-{UID}").read_text() == "precious"
    assert_elsewhere_and_private(tmp_path, directory, variables)


def test_two_ranks_that_meet_a_squatter_get_different_names(tmp_path):
    (tmp_path / f"pytorch-{UID}").write_text("in the way")
    env = {"TMPDIR": str(tmp_path)}
    assert place(env, UID, KEY, create=True)[0] != place(env, UID, KEY, create=True)[0]


def unusable_directories(tmp_path):
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    (tmp_path / "file").write_text("")
    return {
        "/does/not/exist": "No such file or directory",
        "scratch": "not an absolute path",
        str(tmp_path / "file"): "not a directory",
        str(open_to_all): "sticky bit",
    }


@pytest.mark.parametrize("which", range(4))
def test_an_unusable_tmpdir_is_said_and_replaced(tmp_path, which):
    tmpdir, reason = list(unusable_directories(tmp_path).items())[which]
    default = tmp_path / "default"
    default.mkdir()
    directory, _, warnings = place({"TMPDIR": tmpdir}, UID, KEY, create=True, default=str(default))
    assert directory == str(usual(default))
    assert len(warnings) == 1
    assert warnings[0].startswith(f"cannot use {tmpdir} for caches: ")
    assert reason in warnings[0]


def test_a_tmpdir_without_write_permission_is_said_and_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(posix, "access", lambda path, _mode: str(path) != str(tmp_path / "locked"))
    for name in ("locked", "default"):
        (tmp_path / name).mkdir()
    env = {"TMPDIR": str(tmp_path / "locked")}
    directory, _, warnings = place(env, UID, KEY, create=True, default=str(tmp_path / "default"))
    assert directory == str(usual(tmp_path / "default"))
    assert "locked for caches: not writable" in warnings[0]


def test_the_sticky_bit_makes_a_directory_of_everybody_usable(tmp_path):
    tmp_path.chmod(0o1777)
    directory, _, warnings = place({"TMPDIR": f"{tmp_path}/"}, UID, KEY, create=True)
    assert (directory, warnings) == (str(usual(tmp_path)), [])


def test_a_directory_of_a_group_is_usable(tmp_path):
    tmp_path.chmod(0o770)
    assert place({"TMPDIR": str(tmp_path)}, UID, KEY, create=True)[2] == []


def test_where_no_directory_will_do_caches_stay_where_they_are():
    directory, variables, warnings = place(
        {"TMPDIR": "/does/not/exist"}, UID, KEY, create=True, default="/nor/does/this"
    )
    assert (directory, variables) == (None, {})
    assert [warning.split(":")[0] for warning in warnings] == [
        "cannot use /does/not/exist for caches",
        "cannot use /nor/does/this for caches",
    ]


def test_a_file_system_that_refuses_is_no_reason_not_to_train(tmp_path):
    too_long = "7-" + "n" * 300
    directory, variables, warnings = place({"TMPDIR": str(tmp_path)}, UID, too_long, create=True)
    assert (directory, variables) == (None, {})
    assert len(warnings) == 1
    assert "File name too long" in warnings[0]


needs_root = pytest.mark.skipif(UID != 0, reason="only root can make another user's directory")
OTHER = 4242


def given_to(directory, user, mode):
    directory.mkdir()
    os.chown(directory, user, user)
    directory.chmod(mode)
    return directory


@needs_root
def test_a_public_directory_of_another_user_is_not_used(tmp_path):
    """Its owner can replace what is in it, in spite of the sticky bit."""
    public = given_to(tmp_path / "public", OTHER, 0o1777)
    directory, _, warnings = place({"TMPDIR": str(public)}, UID, KEY, create=True, default=str(tmp_path))
    assert directory == str(usual(tmp_path))
    assert warnings == [
        f"cannot use {public} for caches: it belongs to user {OTHER}, who can replace what is in it. "
        "Export another TMPDIR"
    ]
    assert list(public.iterdir()) == []


@needs_root
@pytest.mark.parametrize("kind", ["directory", "link"])
def test_a_part_of_the_path_that_another_user_made_in_a_public_directory_is_not_used(tmp_path, kind):
    public = given_to(tmp_path / "public", 0, 0o1777)
    if kind == "directory":
        theirs = given_to(public / "theirs", OTHER, 0o755)
    else:
        theirs = public / "theirs"
        theirs.symlink_to(given_to(tmp_path / "own", UID, 0o700), target_is_directory=True)
        os.chown(theirs, OTHER, OTHER, follow_symlinks=False)
    (theirs / "tmp").mkdir()
    _, _, (warning,) = place({"TMPDIR": f"{theirs}//tmp/./"}, UID, KEY, create=True, default=str(tmp_path))
    assert f"{theirs} belongs to another user, who can replace it" in warning


@needs_root
def test_in_a_user_namespace_roots_directories_belong_to_nobody_and_are_used(tmp_path, monkeypatch):
    namespace = {"/proc/self/uid_map": "4711 4711 1", "/proc/sys/kernel/overflowuid": str(OTHER)}
    monkeypatch.setattr("pytorch_launch.caches.read", namespace.get)
    public = given_to(tmp_path / "public", OTHER, 0o1777)
    directory, _, warnings = place({"TMPDIR": str(public)}, UID, KEY, create=True)
    assert (directory, warnings) == (str(usual(public)), [])
