"""The port of a launch: two launches of a user never share one."""

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from pytorch_launch import LaunchError
from pytorch_launch.claim import hold, hold_port
from pytorch_launch.launchers.discovery import discover
from pytorch_launch.rendezvous import Place
from test_private import put_in_the_way
from variables import variables

HOLD = """
import sys
sys.path.insert(0, sys.argv[1])
from pytorch_launch.claim import hold
print(hold(*sys.argv[2:5]), flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def port():
    """A port that is free; the kernel gives it to no other process meanwhile."""
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # for servers beside it, socket(7)
        free.bind(("127.0.0.1", 0))
        yield str(free.getsockname()[1])


@pytest.fixture
def held(runscripts, tmp_path):
    """A process that holds a file of `tmp_path`, as a rank of a launch."""

    @contextmanager
    def start(launch, name):
        arguments = [sys.executable, "-c", HOLD, str(runscripts), str(tmp_path), name, launch]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(arguments, **pipes) as process:
            assert process.stdout.readline() == f"{launch}\n"
            yield process

    return start


def test_the_ranks_of_a_launch_share_its_port_and_another_launch_gets_an_error(held, tmp_path, port, first, step):
    place = Place("nid001002", port, "90001.0")
    with held("90000.0", f"port-{port}") as rank_0, held("90000.0", f"port-{port}"):
        with pytest.raises(LaunchError, match=r"is in use by 90000\.0\. Start again, or export another MASTER_PORT"):
            hold_port(discover(first, "nid001002"), place, [str(tmp_path)])
        rank_0.kill()
        rank_0.wait()
        assert hold(tmp_path, f"port-{port}", "90001.0") == "90000.0"  # the other rank lives
    assert hold(tmp_path, f"port-{port}", "90001.0") == "90001.0"


def test_ranks_on_other_nodes_hold_the_port_of_this_address_alone(held, tmp_path, port, step):
    """Launches with other addresses may have ranks on the same node."""
    world = discover(step, "nid001003")
    with held("90001.0", f"port-{port}-nid001002"), held("90002.0", f"port-{port}"):
        with pytest.raises(LaunchError, match=r"in use by 90001\.0"):
            hold_port(world, Place("nid001002", port, "7.0"), [str(tmp_path)])
        hold_port(world, Place("nid001004", port, "7.0"), [str(tmp_path)])
    hold_port(world, Place("nid001002", port, "7.0"), [f"{tmp_path}/.cache/ports"])
    assert list((tmp_path / ".cache/ports").iterdir())


def test_rank_0_finds_a_program_that_listens(tmp_path, first, step):
    with socket.socket() as program:
        program.bind(("127.0.0.1", 0))
        program.listen()
        for launch in ("7.0", None):  # ranks of a launch may share no name
            place = Place("nid001002", str(program.getsockname()[1]), launch)
            with pytest.raises(LaunchError, match="in use by another program, or by one that started this"):
                hold_port(discover(first, "nid001002"), place, [str(tmp_path)])
            hold_port(discover(step, "nid001003"), place, [str(tmp_path)])


@pytest.mark.parametrize("kind", ["0777", "link", "file"])
def test_a_directory_that_another_user_may_fill_is_not_used(tmp_path, port, step, kind):
    directories = [tmp_path / "first", tmp_path / "second"]
    put_in_the_way(directories[0], kind)
    hold_port(discover(step, "nid001003"), Place("nid001002", port, "7.0"), directories)
    assert [path.name for path in directories[1].iterdir()] == [f"port-{port}-nid001002"]
    directories[1].chmod(0o777)  # without any, rank 0 tries the port
    hold_port(discover(step, "nid001003"), Place("nid001002", port, "8.0"), directories)


def test_a_port_is_held_while_python_runs_with_the_streams_that_it_was_given(runscripts, tmp_path, port):
    def start(job, rank, closed=""):
        env = variables(
            f"SLURM_JOB_ID={job} SLURM_STEP_ID=0 SLURM_STEP_NODELIST=localhost SLURM_STEP_NUM_TASKS=2 SLURM_NODEID=0 "
            f"SLURM_STEP_TASKS_PER_NODE=2 SLURM_PROCID={rank} SLURM_LOCALID={rank} MASTER_PORT={port} TMPDIR={tmp_path}"
        )
        code = "import os, sys; os.write(2, b'runs\\n'); os.path.exists('/proc/self/fd/0') and sys.stdin.read()"
        command = f'{runscripts}/conda-python-distributed -c "{code}" {closed}'
        pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(["bash", "-c", f"exec {command}"], env={"PATH": os.environ["PATH"], **env}, **pipes)

    own = [start(90000, 0), start(90000, 1)]
    assert [rank.stderr.readline() for rank in own] == ["runs\n"] * 2
    fault = f"port {port} on localhost, the rendezvous of Slurm step 90001.0, is in use by 90000.0. "
    for rank in (0, 1):
        other = start(90001, rank)
        assert fault in other.communicate(timeout=300)[1]
        assert other.returncode == 2
    assert [rank.communicate(timeout=300)[1] for rank in own] == ["", ""]
    assert start(90001, 1, "<&- >&-").communicate(timeout=300)[1] == "runs\n"


@pytest.mark.parametrize("pairs", [5, pytest.param(500, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("ranks", [1, 8])
def test_of_two_launches_that_start_together_one_gets_the_port(tmp_path, ranks, pairs):
    """Every rank holds the port at the same moment; those of one launch agree."""
    for number in range(pairs):
        source, sink = os.pipe()
        wait, release = os.pipe()
        start = time.time() + 0.01
        children = []
        for launch in ["a", "b"] * ranks:
            child = os.fork()
            if child == 0:
                os.close(release)
                while time.time() < start:
                    pass
                os.write(sink, hold(tmp_path, f"port-{number}", launch).encode())
                os.read(wait, 1)
                os._exit(0)
            children.append(child)
        holders = {os.read(source, 1) for _ in children}
        for end in (release, wait, source, sink):
            os.close(end)
        for child in children:
            os.waitpid(child, 0)
        assert len(holders) == 1, holders
