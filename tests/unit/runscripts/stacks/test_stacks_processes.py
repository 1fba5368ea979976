"""The ranks of a job among the processes of a node."""

import os
from pathlib import Path

import pytest
from pytorch_launch import LaunchError
from pytorch_stacks.node import Selection, find_ranks, read_node, read_stacks

RANK = {"RANK": "3", "WORLD_SIZE": "4", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "PYTORCH_LAUNCH_ID": "7.0"}
MINE = os.getuid()


def selection(job=None, step=None, *, uid=MINE, node="nid0001"):
    return Selection(uid, node, job, step)


def found(root, *job_and_step, **fields):
    return [(int(rank.env["RANK"]), rank.pid) for rank, _ in find_ranks(selection(*job_and_step, **fields), root)]


def test_a_rank_is_a_python_with_the_variables_of_a_rank(proc):
    proc(10, **RANK)
    proc(11, **{**RANK, "RANK": "2"}, exe="/opt/app", maps="7f00 r-xp /usr/lib/libpython3.11.so.1.0\n")
    proc(12, **{**RANK, "RANK": "1"}, exe="/usr/bin/bash")
    root = proc(13, HOME="/home/u")
    assert sorted(found(root)) == [(2, 11), (3, 10)]


def test_only_ranks_of_the_user_the_job_the_step_and_the_node_count(proc):
    proc(10, **RANK)
    proc(11, **{**RANK, "SLURM_STEP_ID": "1", "PYTORCH_LAUNCH_ID": "7.1"})
    proc(12, **{**RANK, "SLURM_JOB_ID": "8", "PYTORCH_LAUNCH_ID": "8.0"})
    root = proc(13, **{**RANK, "RANK": "0", "SLURMD_NODENAME": "nid0002"})
    assert found(root, "7", "0") == [(3, 10)]
    assert sorted(found(root, "7")) == [(3, 10), (3, 11)]
    assert sorted(found(root, "7", "0", node="nid0002")) == [(0, 13), (3, 10)]
    assert found(root, uid=MINE + 1) == []
    # ranks of mpirun may have the name of another node
    proc(14, **{**RANK, "SLURM_JOB_ID": "9", "SLURMD_NODENAME": "nid0002", "MPI_LOCALRANKID": "0"})
    assert found(root, "9") == [(3, 14)]


def test_children_of_a_rank_belong_to_it_and_later_programs_of_its_task_are_left_out(proc):
    proc(10, started=100, **RANK)
    proc(11, parent=10, started=101, **RANK)
    root = proc(12, parent=9, started=102, **RANK)
    ((rank, children),) = find_ranks(selection(), root)
    assert (rank.env["RANK"], rank.pid, children) == ("3", 10, [11])


def test_a_process_that_has_ended_is_left_out(proc):
    root = proc(10, **RANK)
    Path(root, "proc/10/stat").unlink()
    proc(11, **{**RANK, "RANK": "1"})
    assert found(root) == [(1, 11)]


def test_the_worlds_that_a_plain_torchrun_starts_on_each_node_are_separate(proc):
    """All of them have torchrun's default as their name, and its address and port."""
    worker = {**RANK, "TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    del worker["PYTORCH_LAUNCH_ID"]
    root = proc(10, **worker)
    proc(11, **{**worker, "MASTER_ADDR": "nid0001", "RANK": "2"})
    answers = [read_node(selection("7", "0", node=node), 1, root) for node in ("nid0001", "nid0002")]
    found = [{rank.launch for rank in ranks} for ranks in answers]
    assert found == [{f"127.0.0.1:29500 on {node}", "nid0001:29500"} for node in ("nid0001", "nid0002")]


# py-spy


def test_the_main_thread_of_a_rank_comes_first_and_the_processes_that_it_started_last(proc, py_spy, monkeypatch):
    proc(os.getpid(), **RANK)
    root = proc(4194303, parent=os.getpid(), **RANK)
    program = py_spy("""[ "$4" = 4194303 ] && echo "${threads//t.py/data.py}" || echo "$threads" """)
    (rank,) = read_node(selection("7", "0"), 120, root)
    assert (rank.node, rank.rank, rank.fault) == ("nid0001", 3, None)
    assert rank.threads == [
        ("MainThread", [["f", "/t.py", 3]]),
        ("pin", [["f", "/t.py", 9]]),
        ("of process 4194303", [["f", "/data.py", 9]]),
    ]
    # py-spy of the rank is used, too
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert read_stacks(os.getpid(), {"PATH": f"relative:{program.parent}"}, 120)
    py_spy("exit 1")
    (rank,) = read_node(selection(), 120, root)
    assert rank.fault == "py-spy: exit status 1"


def test_without_py_spy_a_sentence_has_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        LaunchError, match=r"py-spy not found .* Install it with the module's pip \(`pip install py-spy`"
    ):
        read_stacks(os.getpid(), {"PATH": f":{tmp_path}/absent"}, 120)


def test_the_kernels_refusal_is_named_with_its_setting(py_spy, monkeypatch, tmp_path):
    (tmp_path / "scope").write_text("2\n")
    monkeypatch.setattr("pytorch_stacks.node.SCOPE", str(tmp_path / "scope"))
    py_spy("echo 'Permission Denied: Try running again with elevated permissions' >&2; exit 1")
    with pytest.raises(LaunchError, match=r"no permission to trace it \(kernel.yama.ptrace_scope=2\). Run pytorch-st"):
        read_stacks(os.getpid(), {}, 120)


@pytest.mark.parametrize(
    ("code", "seconds", "message"),
    [
        ("exec sleep 600", 0.2, "no stack within 0.2 s: try again with a larger --timeout"),
        ("echo 'Error: no python version' >&2; exit 1", 120, "py-spy: Error: no python version"),
    ],
)
def test_a_process_that_does_not_answer_is_given_up_and_another_fault_has_py_spys_words(py_spy, code, seconds, message):
    py_spy(code)
    with pytest.raises(LaunchError, match=message):
        read_stacks(os.getpid(), {}, seconds)
