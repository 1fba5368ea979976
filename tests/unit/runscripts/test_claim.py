"""The claim on a port: two launches never share one, and processes that one leaves behind do not block the next."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

import pytest
from pytorch_launch import claim
from pytorch_launch.claim import NUMBERS, hold_port, is_claimed, take_claim
from pytorch_launch.launchers import discover
from pytorch_launch.world import RendezvousError
from variables import variables

HOLD = """
import posix, sys
sys.path.insert(0, sys.argv[1])
from pytorch_launch.claim import take_claim
assert take_claim(int(sys.argv[2]), sys.argv[3], is_rank_0=sys.argv[4] == "0") is None
%s
print("claimed", flush=True)
sys.stdin.read()
"""


@contextmanager
def free_ports(count):
    """Different ports that are free, and so are their names; the kernel gives them to no other process meanwhile."""
    with ExitStack() as free:
        sockets = [free.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # for servers beside it, socket(7)
            each.bind(("127.0.0.1", 0))
        yield [each.getsockname()[1] for each in sockets]


@pytest.fixture
def port():
    """A port that is free, and so is its name."""
    with free_ports(1) as (port,):
        yield port


@pytest.fixture
def holds(runscripts, port):
    """A process that has claimed the port, as a rank of a launch."""

    @contextmanager
    def hold(launch, more="", rank=0):
        arguments = [sys.executable, "-c", HOLD % more, str(runscripts), str(port), launch, str(rank)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(arguments, **pipes) as process:
            assert process.stdout.readline() == "claimed\n"
            yield process

    return hold


def test_a_launch_does_not_get_the_port_of_another_one_and_its_ranks_share_it(holds, port, first):
    place, world = {"MASTER_ADDR": "nid001002", "MASTER_PORT": str(port)}, discover(first, "nid001002")
    with holds("90000.0", rank=1) as rank_1, holds("90000.0") as rank_0, holds("90000.0", rank=2):
        assert take_claim(port, "90001.0", is_rank_0=True) in [("90000.0", str(each.pid)) for each in (rank_1, rank_0)]
        assert is_claimed(port)
        fault = r"is in use by 90000\.0 \(process \d+\)\. Start again, or export another MASTER_PORT"
        for launch in ("90001.0", None):
            with pytest.raises(RendezvousError, match=fault):
                hold_port(place, world, launch)
        rank_1.kill()
        rank_1.wait()
        assert take_claim(port, "90001.0", is_rank_0=False) == ("90000.0", str(rank_0.pid))


def test_of_launches_that_cannot_be_told_apart_rank_0_alone_claims(holds, port, step):
    place, world = {"MASTER_ADDR": "nid001002", "MASTER_PORT": str(port)}, discover(step, "nid001003")
    with holds("-4711"):
        assert hold_port(place, world, None) is None  # rank 3
        with pytest.raises(RendezvousError, match=r"in use by another launch \(process \d+\)"):
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
            assert take_claim(port, "9.0", is_rank_0=True)[0] == "8.0"
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_process_whose_files_are_hidden_is_found_by_its_number(monkeypatch):
    """As another user's with hidepid=2."""
    with subprocess.Popen(["sleep", "600"]) as process:
        held = str(os.stat("/proc/self/ns/pid").st_ino), str(process.pid)  # noqa: PTH116
        monkeypatch.setattr(claim, "process", lambda _pid: ("", "", ""))
        assert not claim._has_ended(*held)
        process.kill()
    assert claim._has_ended(*held)


def squat(name):
    taken = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    taken.bind(f"\0pytorch-launch/{name}")
    return taken


SUPERVISOR = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[1])
from pytorch_launch.claim import take_claim
assert take_claim(int(sys.argv[2]), f"-{os.getpid()}", is_rank_0=True) is None
if len(sys.argv) == 3:  # the same again
    subprocess.run([sys.executable, "-c", os.environ["SUPERVISOR"], *sys.argv[1:], "inner"], check=True)
"""


def test_a_rank_may_run_the_launcher_again_as_a_supervisor_does(runscripts, port):
    env = {**os.environ, "SUPERVISOR": SUPERVISOR}
    subprocess.run([sys.executable, "-c", SUPERVISOR, str(runscripts), str(port)], env=env, check=True)


def test_another_user_who_takes_the_names_causes_an_error_after_one_try_of_each(port, monkeypatch):
    names, tries = [squat(f"{port}/{number}") for number in range(NUMBERS)], []
    bind = claim._bind
    monkeypatch.setattr(claim, "_bind", lambda *arguments: tries.append(arguments[1]) or bind(*arguments))
    assert take_claim(port, "7.0", is_rank_0=False) == ("another program", "")
    assert tries == [*range(NUMBERS)]
    for name in names:
        name.close()


def test_a_name_with_two_labels_belongs_to_no_launch(port):
    """Or a process in between could make two launches take it for one of theirs."""
    taken = [squat(f"{port}/{number}") for number in range(NUMBERS)]
    for name in list(taken):
        inode = os.fstat(name.fileno()).st_ino
        taken += [squat(f"{port}/of/{inode}/{launch}/0/1") for launch in ("7.0", "8.0")]
    assert take_claim(port, "7.0", is_rank_0=False) == ("another program", "")
    for name in taken:
        name.close()


RACE = """
import os, socket, time
job, port = os.environ["SLURM_JOB_ID"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    with socket.create_server(("127.0.0.1", port)) as server:
        server.settimeout(300)
        other = server.accept()[0]
else:
    end = time.monotonic() + 300
    while True:
        try:
            other = socket.create_connection(("127.0.0.1", port))
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
other.settimeout(300)
other.sendall(job.encode())
print(job, other.recv(9).decode())
"""


def wait_for_ends(processes, count):
    """Return when `count` of the processes have ended."""
    end = time.monotonic() + 300
    while sum(process.poll() is not None for process in processes) < count and time.monotonic() < end:
        time.sleep(0.01)


def test_ranks_of_two_launches_that_start_together_never_meet(runscripts, tmp_path):
    """As torch's: rank 0 binds the port after a while, the other connects as soon as it can."""
    (tmp_path / "race.py").write_text(RACE)

    def start(port, job, rank):
        env = variables(
            f"SLURM_JOB_ID={job} SLURM_STEP_ID=0 SLURM_STEP_NODELIST=localhost SLURM_STEP_NUM_TASKS=2 SLURM_NODEID=0 "
            f"SLURM_STEP_TASKS_PER_NODE=2 SLURM_PROCID={rank} SLURM_LOCALID={rank} MASTER_PORT={port} TMPDIR={tmp_path}"
        )
        command = [str(runscripts / "conda-python-distributed"), "race.py"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, env={"PATH": os.environ["PATH"], **env}, cwd=tmp_path, text=True, **pipes)

    # the other rank of the launch without the port ends seconds later: meanwhile, the next round begins
    rounds = []
    with free_ports(6) as ports:
        for port in ports:
            rounds.append((port, [start(port, job, rank) for rank in (0, 1) for job in (90000, 90001)]))
            wait_for_ends(rounds[-1][1], 3)
        ended = [(port, [rank.communicate(timeout=300) for rank in ranks]) for port, ranks in rounds]
    for port, outputs in ended:
        met = [stdout.split() for stdout, _ in outputs if stdout]
        assert len(met) == 2 and len({job for pair in met for job in pair}) == 1, outputs
        errors = [stderr for stdout, stderr in outputs if not stdout]
        assert all(
            f"port {port} on localhost, the rendezvous of Slurm step 9000" in error and ".0, is in use by 9000" in error
            for error in errors
        ), errors


def test_pythons_standard_streams_are_none_of_the_claims(runscripts, port):
    code = (
        f"import posix, sys; posix.close(0); posix.close(1); sys.path.insert(0, {str(runscripts)!r})\n"
        f"from pytorch_launch.claim import take_claim\ntake_claim({port}, '7.0', is_rank_0=True)\n"
        "sys.exit(any(posix.access(f'/proc/self/fd/{fd}', 0) for fd in (0, 1)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [1, 2])
def test_of_500_pairs_of_launches_that_start_together_one_of_each_gets_the_port(ranks, runscripts):
    """Every rank claims at the same moment; those of one launch agree."""
    for number in range(500):
        source, sink = os.pipe()
        hold, release = os.pipe()
        start, children, port = time.time() + 0.01, [], 20000 + number % 9000
        for launch in ("a", "b"):
            for rank in range(ranks):
                child = os.fork()
                if child == 0:
                    os.close(release)
                    while time.time() < start:
                        pass
                    holder = take_claim(port, f"{launch}.{number}", is_rank_0=rank == 0)
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
