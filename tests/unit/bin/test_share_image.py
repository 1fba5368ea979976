"""One mount for the ranks of a node, as far as it needs no image: who shares, who asks whom, and what else happens."""

import importlib.util
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

BIN = Path(__file__).parents[3] / "bin"
NOTE = "mounts the image for itself"
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "8(x2),4"}
#: A runtime that starts programs, but in which no shell starts.
RUNTIME = """#!/bin/bash
export APPTAINER_CONTAINER=$2
shift 2
[ "$1" != sh ] || { echo "no shell" >&2; exit 3; }
exec "$@"
"""


@pytest.fixture
def share_image():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("share_image", BIN / "share-image.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def start(tmp_path):
    """Starts a command of the module's bin/ in an environment with `variables`; returns the process."""
    places = {name: tmp_path / name for name in ("bin", "runtime", "image.sif")}
    places["bin"].mkdir()
    places["runtime"].mkdir()
    places["image.sif"].touch()
    for name in ("enter-image", "share-image.py"):
        (places["bin"] / name).symlink_to(BIN / name)
    runtime = places["runtime"] / "singularity"
    runtime.write_text(RUNTIME)
    runtime.chmod(0o755)

    def run(command, *arguments, **variables):
        link = places["bin"] / command
        if not link.is_symlink():
            link.symlink_to("enter-image")
        env = {"PATH": f"{places['bin']}:{places['runtime']}:/usr/bin:/bin", "SIFPYTORCH": str(places["image.sif"])}
        # no other test run on this machine has the same job
        if "SLURM_JOB_ID" in variables:
            variables["SLURM_JOB_ID"] = str(os.getpid())
        return subprocess.Popen(
            [link, *arguments], env={**env, **variables}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    return run


@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_STEP_TASKS_PER_NODE": "2"},
        {"SLURM_STEP_TASKS_PER_NODE": "1(x3),2"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "SLURM_STEP_TASKS_PER_NODE": "1"},
        {"MPI_LOCALNRANKS": "2"},
        {"PALS_LOCAL_SIZE": "2"},
        {"PMI_LOCAL_SIZE": "2"},
    ],
)
def test_several_ranks_on_a_node_look_for_one_mount(start, variables):
    output, errors = start("expr", "6", "*", "7", SLURM_JOB_ID="7", **variables).communicate()
    assert output == "42\n"
    assert f"{NOTE}, as singularity ended with status 3: no shell: export PYTORCH_LAUNCH_SHARE_IMAGE=0" in errors


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"SLURM_STEP_TASKS_PER_NODE": "1"},
        {"SLURM_STEP_TASKS_PER_NODE": "1(x128)"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "SLURM_STEP_TASKS_PER_NODE": "2"},
        {"SLURM_STEP_TASKS_PER_NODE": "2", "PYTORCH_LAUNCH_SHARE_IMAGE": "0"},
    ],
)
def test_a_rank_that_is_alone_or_declines_does_not(start, variables):
    assert start("expr", "6", "*", "7", SLURM_JOB_ID="7", **variables).communicate() == ("42\n", "")


def test_one_rank_of_a_node_says_that_there_is_no_common_mount(start):
    ranks = [start("bash", "-c", "sleep 1; exit 3", **STEP) for _ in range(8)]
    errors = "".join(rank.communicate()[1] for rank in ranks)
    assert errors.count(NOTE) == 1
    assert [rank.returncode for rank in ranks] == [3] * 8


def test_without_the_name_of_a_launch_children_of_one_process_belong_together(start):
    ranks = [start("bash", "-c", "sleep 1; exit 3", PMI_LOCAL_SIZE="2") for _ in range(2)]
    errors = "".join(rank.communicate()[1] for rank in ranks)
    assert errors.count(NOTE) == 1
    assert "no shell" in errors
    assert [rank.returncode for rank in ranks] == [3] * 2


@pytest.mark.parametrize("option", ["APPTAINER_WRITABLE_TMPFS", "SINGULARITY_CONTAIN", "APPTAINER_OVERLAY"])
def test_ranks_of_containers_with_something_of_their_own_do_not_share(start, option):
    assert start("expr", "6", "*", "7", **STEP, **{option: "1"}).communicate() == ("42\n", "")


def test_a_command_is_found_by_a_link_from_elsewhere(start, tmp_path):
    start("expr", "1").wait()
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "expr"
    link.symlink_to(tmp_path / "bin" / "expr")
    output, errors = start(link, "6", "*", "7", **STEP).communicate()
    assert output == "42\n"
    assert "no shell" in errors


def test_nothing_is_imported_in_the_image(tmp_path):
    """It may have another Python, or none."""
    entering = """
import sys
script = {"__name__": "share_image"}
exec(open(sys.argv[1]).read(), script)
script["ask"] = lambda *_: (1, {})
script["enter"] = lambda _: sys.path.clear()
sys.exit(script["main"]("runtime", "image", sys.argv[2], "entered"))
"""
    for command, code, output in (("echo", 0, "entered\n"), ("no-such-command", 127, "")):
        result = subprocess.run(
            [sys.executable, "-I", "-S", "-c", entering, BIN / "share-image.py", command],
            env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (result.returncode, result.stdout) == (code, output), result.stderr
        assert "Traceback" not in result.stderr


def test_a_runtime_that_cannot_be_started_is_the_reason(start, tmp_path):
    (tmp_path / "runtime" / "singularity").write_text("neither a script nor a program")
    _, errors = start("expr", "6", "*", "7", **STEP).communicate()
    assert f"{NOTE}, as OSError: [Errno 8] Exec format error" in errors


@pytest.fixture
def listening():
    """A listener, and how a rank connects to it."""
    address = b"\0pytorch-image awaited by a test %d" % os.getpid()

    def connect():
        rank = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        rank.connect(address)
        return rank

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        yield listener, connect


def test_the_keeper_is_found_after_text_that_ends_no_line(share_image, listening):
    listener, connect = listening
    script = f"printf 'first\\n\\nno end'; {share_image.KEEPER}"
    rank = connect()
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as runtime:
        assert share_image.wait_for(runtime, listener, {}) == (runtime.pid, b"first\nno end\n")
    rank.close()


def test_waiting_for_a_keeper_ends_when_the_last_rank_has_gone(share_image, listening):
    listener, connect = listening
    ranks = {}
    connect().close()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as runtime:
        assert share_image.wait_for(runtime, listener, ranks) == (0, b"")
    assert ranks == {}


def test_a_command_that_does_not_exist_is_an_error(start):
    rank = start("no-such-command", SLURM_STEP_TASKS_PER_NODE="2", SLURM_JOB_ID="7", PYTORCH_LAUNCH_SHARE_IMAGE="0")
    rank.communicate()
    assert rank.returncode == 127


def test_an_address_that_another_user_has_taken_is_not_believed(share_image, monkeypatch):
    address = b"\0pytorch-image of a test %d" % os.getpid()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        user = os.geteuid()
        monkeypatch.setattr(share_image.os, "geteuid", lambda: user + 1)
        with pytest.raises(share_image.NotShared, match=f"user {user} has taken the address"):
            share_image.meet(address, b"wanted", ("runtime",), {})


@pytest.fixture
def holder(share_image):
    """The address of a process that serves ranks, and waits for the last of them."""
    address = b"\0pytorch-image held by a test %d" % os.getpid()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen()
    child = os.fork()
    if child == 0:
        share_image.serve(listener, b"wanted", (b"messages", "reason", 1, {}, {}), {})
        os._exit(0)
    listener.close()
    yield address
    assert os.waitpid(child, 0)[1] == 0


#: Asks as a rank does, closes the connection or not, and stays until its input ends.
RANK = """
import marshal, socket, sys
address, question, closes = map(eval, sys.argv[1:])
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect(address)
connection.send(question)
answer = marshal.loads(connection.recv(1 << 16))
if closes:
    connection.close()
print(answer, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def rank():
    """Starts a rank that asks the holder; returns the process and its answer. All of them end with the test."""
    ranks = []

    def ask(address, question, *, closes=False):
        process = subprocess.Popen(
            [sys.executable, "-c", RANK, *map(repr, (address, question, closes))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        ranks.append(process)
        return process.stdout.readline().strip()

    yield ask
    for process in ranks:
        process.communicate()


def test_the_first_rank_alone_is_told_what_is_to_be_read(holder, rank):
    assert rank(holder, b"wanted") == "(b'messages', 'reason', 1, {}, {})"
    assert rank(holder, b"wanted") == "(b'', '', 1, {}, {})"
    assert "not all have the same image, working directory, SINGULARITY_*" in rank(holder, b"another")
    assert rank(holder, b"another") == "(b'', '', 0, {}, {})"


def test_a_rank_that_closes_all_its_files_still_has_the_mount(holder, rank):
    rank(holder, b"wanted", closes=True)
    time.sleep(1)  # for a holder that would end with the connection, and refuse the next
    assert rank(holder, b"wanted") == "(b'', '', 1, {}, {})"


def test_a_rank_with_other_values_of_what_the_image_goes_by_may_not_share(share_image):
    answer = share_image.marshal.dumps((b"", "", 1, {}, {b"SET": b"1", b"NOT_SET": None}))
    assert not share_image.differing({b"SET": b"1", b"ANOTHER": b"2"}, answer)
    assert share_image.differing({b"SET": b"2"}, answer)
    assert share_image.differing({b"SET": b"1", b"NOT_SET": b""}, answer)


def test_a_process_that_has_ended_has_not_started(share_image):
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        assert int(share_image.started(process.pid)) > 0
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie
        assert share_image.started(process.pid) == b""
    assert share_image.started(process.pid) == b""
