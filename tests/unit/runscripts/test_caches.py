"""Caches go to private directories of this user, job and node, and never to torch's default."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pytorch_launch import LaunchError
from pytorch_launch.caches import SUBDIRECTORIES, choose_caches, make_caches
from test_private import put_in_the_way

UID = os.geteuid()
KEY = "7-nid001003"


def choose(directory, **env):
    """The Caches of a process whose /tmp is `directory`."""
    return choose_caches(env, UID, KEY, default=str(directory))


def usual(base):
    return f"{base}/pytorch-{UID}/{KEY}"


def texts(made):
    return [str(problem) for problem in made.warnings]


def assert_private_below(base, made):
    """The caches are private directories below `base`, which no other user could expect or make."""
    assert Path(made.directory).parents[1] == base
    assert made.variables == {name: f"{made.directory}/{made_in}" for name, made_in in SUBDIRECTORIES.items()}
    for path in (Path(made.directory).parent, made.directory, *made.variables.values()):
        status = os.lstat(path)
        assert (status.st_mode, status.st_uid) == (0o40700, UID)


def test_each_cache_gets_a_private_directory_of_its_job_and_node(tmp_path):
    chosen = choose("/absent", TMPDIR=f"{tmp_path}/")
    assert not list(tmp_path.iterdir())  # a plan writes nothing
    made = make_caches(chosen)
    assert (made.directory, made.warnings) == (usual(tmp_path), [])
    assert made.variables == chosen.variables
    assert_private_below(tmp_path, made)


def test_many_ranks_at_once_do_not_get_in_each_others_way(tmp_path, runscripts):
    program = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from pytorch_launch.caches import choose_caches, make_caches\n"
        "sys.stdin.readline()\n"
        "made = make_caches(choose_caches({'TMPDIR': sys.argv[2]}, os.geteuid(), '7-n'))\n"
        "print(made.directory, made.warnings)"
    )
    command = [sys.executable, "-I", "-S", "-c", program, runscripts, tmp_path]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    ranks = [subprocess.Popen(command, text=True, **pipes) for _ in range(16)]
    for rank in ranks:
        rank.stdin.write("go\n")
        rank.stdin.flush()
    assert {rank.communicate()[0] for rank in ranks} == {f"{tmp_path}/pytorch-{UID}/7-n []\n"}


#: Those of a launch whose rank submitted this job: of another job, and another user may have made them here first.
OTHERS = {name: f"/local/pytorch-{UID}/6-nid1/{sub}" for name, sub in SUBDIRECTORIES.items()}


@pytest.mark.parametrize(
    "env",
    [
        {"TRITON_CACHE_DIR": "/mine", "CUDA_CACHE_PATH": ""},
        {**OTHERS, "TRITON_CACHE_DIR": f"/local/pytorch-{UID}/mine"},
    ],
)
def test_a_cache_that_the_user_placed_stays_and_gets_no_directory(tmp_path, env):
    made = make_caches(choose(tmp_path, **env))
    assert set(SUBDIRECTORIES) - set(made.variables) == {"TRITON_CACHE_DIR"}
    assert not Path(made.directory, "triton").exists()


def test_if_the_user_placed_all_no_directory_is_examined():
    chosen = choose_caches(dict.fromkeys(SUBDIRECTORIES, "/mine"), UID, KEY)
    assert make_caches(chosen) == chosen and (chosen.directory, chosen.variables) == (None, {})


@pytest.fixture
def home(tmp_path):
    (tmp_path / "home/.cache").mkdir(parents=True)
    return tmp_path / "home"


def test_an_unusable_tmpdir_is_named_and_replaced_by_tmp_and_this_by_the_home_directory(tmp_path, home):
    (tmp_path / "local").mkdir()
    chosen = choose(tmp_path / "local", TMPDIR="/absent", HOME=str(home))
    assert make_caches(chosen).directory == usual(tmp_path / "local")
    assert texts(chosen) == ["cannot use /absent for caches: No such file or directory. Export another TMPDIR"]
    (tmp_path / "local").chmod(0o777)  # without a sticky bit
    chosen = choose(tmp_path / "local", TMPDIR="/absent", HOME=str(home))
    assert_private_below(home / ".cache", make_caches(chosen))
    assert len(chosen.warnings) == 2


def test_without_any_place_the_launch_ends_with_the_line_that_works(tmp_path):
    remedy = "Export TMPDIR=<a directory of yours on this node>"
    with pytest.raises(LaunchError, match=f"cannot use /absent for caches: .*cannot use /gone .*{remedy}"):
        choose("/gone", TMPDIR="/absent")
    with pytest.raises(LaunchError, match=f"File name too long.*{remedy}"):
        make_caches(choose_caches({}, UID, "7-" + "n" * 300, default=str(tmp_path)))


@pytest.mark.parametrize("kind", ["link", "file", "other", "0777"])
def test_if_another_user_has_taken_the_name_the_caches_are_at_home_or_the_launch_ends(tmp_path, home, kind):
    (tmp_path / "local").mkdir()
    put_in_the_way(tmp_path / "local" / f"pytorch-{UID}", kind)
    made = make_caches(choose(tmp_path / "local", HOME=str(home)))
    assert_private_below(home / ".cache", made)
    assert f"cannot use {tmp_path}/local for caches: {tmp_path}/local/pytorch-{UID} " in texts(made)[0]
    with pytest.raises(LaunchError, match="Export TMPDIR="):
        make_caches(choose(tmp_path / "local"))
