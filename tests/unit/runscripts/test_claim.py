"""The claim on a port: two launches never share one, and processes that one leaves behind do not block the next."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from pytorch_launch import LaunchError, claim
from pytorch_launch.claim import hold_port, is_claimed, take_claim
from pytorch_launch.launchers import discover
from pytorch_launch.world import text_number
from variables import variables

HOLD = """
import posix, sys
sys.path.insert(0, sys.argv[1])
from pytorch_launch.claim import take_claim
assert take_claim(sys.argv[2], sys.argv[3], is_rank_0=sys.argv[4] == "0") is None
%s
print("claimed", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def port():
    """A port that is free, and so is its name; the kernel gives it to no other process meanwhile."""
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # for servers beside it, socket(7)
        free.bind(("127.0.0.1", 0))
        yield free.getsockname()[1]


@pytest.fixture
def holds(runscripts, port):
    """A process that has claimed the port, as a rank of a launch."""

    @contextmanager
    def hold(launch, more="", rank=0, place=port):
        arguments = [sys.executable, "-c", HOLD % more, str(runscripts), str(place), launch, str(rank)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(arguments, **pipes) as process:
            assert process.stdout.readline() == "claimed\n"
            yield process

    return hold


def test_a_launch_does_not_get_the_port_of_another_one_and_its_ranks_share_it(holds, port, first):
    place, world = {"MASTER_ADDR": "nid001002", "MASTER_PORT": str(port)}, discover(first, "nid001002")
    with holds("90000.0", rank=1) as rank_1, holds("90000.0") as rank_0, holds("90000.0", rank=2) as rank_2:
        holders = [("90000.0", str(each.pid)) for each in (rank_0, rank_1, rank_2)]
        assert take_claim(str(port), "90001.0", is_rank_0=True) in holders
        assert is_claimed(port)
        fault = r"is in use by 90000\.0 \(process \d+\)\. Start again, or export another MASTER_PORT"
        for launch in ("90001.0", None):
            with pytest.raises(LaunchError, match=fault):
                hold_port(place, world, launch)
        # a task that starts two programs
        with pytest.raises(LaunchError, match=rf"by another rank 0 of this launch \(process {rank_0.pid}\)"):
            hold_port(place, world, "90000.0")
        rank_1.kill()
        rank_1.wait()
        assert take_claim(str(port), "90001.0", is_rank_0=False) in (holders[0], holders[2])


def test_of_launches_that_cannot_be_told_apart_rank_0_alone_claims(holds, port, step):
    place, world = {"MASTER_ADDR": "nid001002", "MASTER_PORT": str(port)}, discover(step, "nid001003")
    with holds("-4711"):
        assert hold_port(place, world, None) is None  # rank 3
        with pytest.raises(LaunchError, match=r"in use by another launch \(process \d+\)"):
            hold_port(place, world.replace(rank=0), None)


CHILD = """
if posix.fork() == 0:
    import time
    posix.close(0), posix.close(1)
    time.sleep(600)
"""


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:  # noqa: PTH123
        return [int(child) for child in file.read().split()]


def test_what_a_launch_leaves_behind_does_not_block_the_next(holds, port):
    with holds("7.0", CHILD) as process:
        (child,) = children(process.pid)
        assert is_claimed(port)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not reaped
        assert not is_claimed(port)
    try:
        assert not is_claimed(port)
        with holds("8.0"):
            assert take_claim(str(port), "9.0", is_rank_0=True)[0] == "8.0"
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_process_whose_files_are_hidden_is_found_by_its_number(monkeypatch):
    """As another user's with hidepid=2."""
    with subprocess.Popen(["sleep", "600"]) as process:
        monkeypatch.setattr(claim, "process", lambda _pid: ("", "", ""))
        assert not claim._has_ended(str(process.pid))
        process.kill()
    assert claim._has_ended(str(process.pid))


def squat(name):
    taken = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    taken.bind(f"\0pytorch-launch/{name}")
    return taken


SUPERVISOR = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[1])
from pytorch_launch.claim import take_claim
assert take_claim(sys.argv[2], f"-{os.getpid()}", is_rank_0=True) is None
if len(sys.argv) == 3:  # the same again
    subprocess.run([sys.executable, "-c", os.environ["SUPERVISOR"], *sys.argv[1:], "inner"], check=True)
"""


def test_a_rank_may_run_the_launcher_again_as_a_supervisor_does(runscripts, port):
    env = {**os.environ, "SUPERVISOR": SUPERVISOR}
    subprocess.run([sys.executable, "-c", SUPERVISOR, str(runscripts), str(port)], env=env, check=True)


def test_another_user_who_takes_the_name_causes_an_error_and_no_long_wait(port):
    with squat(port):
        started = time.monotonic()
        assert take_claim(str(port), "7.0", is_rank_0=False) == ("another program", "")
        assert time.monotonic() - started < 5
    # a launch that another user feigns is one
    with squat(f"{port}/8.0/-/0/1"):
        assert take_claim(str(port), "7.0", is_rank_0=False) == ("8.0", "")


def test_ranks_on_other_nodes_claim_the_port_of_this_address_alone(holds, port, step):
    """Launches with other addresses may have ranks on the same node."""
    place, world = {"MASTER_ADDR": "nid001002", "MASTER_PORT": str(port)}, discover(step, "nid001003")
    with holds("90001.0", rank=2, place=f"{port}-{text_number('nid001002')}"):
        with pytest.raises(LaunchError, match=r"in use by 90001\.0"):
            hold_port(place, world, "7.0")
        for free in ({"MASTER_ADDR": "nid001004"}, {"MASTER_PORT": str(port - 1)}):
            assert hold_port({**place, **free}, world, "7.0") is None
    assert not is_claimed(port)


def test_a_rank_keeps_the_port_from_another_launch_while_its_python_runs(runscripts, tmp_path, port):
    def start(job, rank):
        env = variables(
            f"SLURM_JOB_ID={job} SLURM_STEP_ID=0 SLURM_STEP_NODELIST=localhost SLURM_STEP_NUM_TASKS=2 SLURM_NODEID=0 "
            f"SLURM_STEP_TASKS_PER_NODE=2 SLURM_PROCID={rank} SLURM_LOCALID={rank} MASTER_PORT={port} TMPDIR={tmp_path}"
        )
        command = [runscripts / "conda-python-distributed", "-c", "print('runs', flush=True); input()"]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(command, env={"PATH": os.environ["PATH"], **env}, text=True, **pipes)

    own = [start(90000, 0), start(90000, 1)]
    assert [rank.stdout.readline() for rank in own] == ["runs\n"] * 2
    fault = f"port {port} on localhost, the rendezvous of Slurm step 90001.0, is in use by 90000.0 (process "
    for rank in (0, 1):
        other = start(90001, rank)
        assert fault in other.communicate(timeout=300)[1] and other.returncode == 2
    assert [rank.communicate("\n", timeout=300) for rank in own] == [("", "")] * 2


def test_pythons_standard_streams_are_none_of_the_claims(runscripts, port):
    code = (
        f"import posix, sys; posix.close(0); posix.close(1); sys.path.insert(0, {str(runscripts)!r})\n"
        f"from pytorch_launch.claim import take_claim\ntake_claim('{port}', '7.0', is_rank_0=True)\n"
        "sys.exit(any(posix.access(f'/proc/self/fd/{fd}', 0) for fd in (0, 1)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("pairs", [20, pytest.param(500, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("ranks", [1, 8])
def test_of_two_launches_that_start_together_one_gets_the_port(ranks, pairs):
    """Every rank claims at the same moment; those of one launch agree."""
    for number in range(pairs):
        source, sink = os.pipe()
        hold, release = os.pipe()
        start, children, port = time.time() + 0.01, [], 20000 + (number + os.getpid()) % 9000
        for launch in ("a", "b"):
            for rank in range(ranks):
                child = os.fork()
                if child == 0:
                    os.close(release)
                    while time.time() < start:
                        pass
                    holder = take_claim(str(port), f"{launch}.{number}", is_rank_0=rank == 0)
                    os.write(sink, launch.encode() if holder is None else b"-")
                    os.read(hold, 1)
                    os._exit(0)
                children.append(child)
        claimed = b"".join(os.read(source, 1) for _ in children)
        for end in (release, hold, source, sink):
            os.close(end)
        for child in children:
            os.waitpid(child, 0)
        assert sorted(claimed) in ([*b"-" * ranks, *launch * ranks] for launch in (b"a", b"b")), claimed
