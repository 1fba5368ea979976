"""A node failed if Slurm, the doctor or the log of a rank names it; a program's own failure names none."""

import pytest
from pytorch_launch.records import record
from pytorch_run import evidence
from pytorch_run.no_kill import is_in_script, is_submitted_with
from pytorch_run.nodes import ask_nodes, failed_checks
from pytorch_run.rank_logs import hardware_error, is_complete, nodes_with_hardware_errors
from pytorch_run.slurm import State
from written_steps import Steps, answer, row

NODES = ["n1", "n2", "n3"]
WELL = {node: answer(node, row("gpu"), row("caches")) for node in NODES}


@pytest.mark.parametrize("state", ["down", "down*", "allocated*", "failing", "powering_down", "unknown"])
def test_a_node_that_slurm_reports_as_down_or_silent_has_failed(state):
    found = evidence.reported_by_slurm(NODES, NODES, {"n2": State(state, "Not responding")})
    assert found == {"n2": f"Slurm reports {state} (Not responding)"}


def test_a_node_that_the_site_drains_during_a_step_has_failed_but_not_one_that_was_drained_before():
    states = {"n1": State("draining", "GPU 3"), "n2": State("draining", "update"), "n3": State("mixed", "none")}
    found = evidence.reported_by_slurm(NODES, NODES, states, drained=["n2"])
    assert found == {"n1": "Slurm reports draining (GPU 3)"}


def test_a_node_that_is_no_longer_of_the_job_has_failed_unless_slurm_does_not_answer():
    assert evidence.reported_by_slurm(NODES, ["n1", "n3"], {}) == {"n2": "Slurm removed it from the job"}
    assert evidence.reported_by_slurm(NODES, None, {}) == {}


def test_a_node_where_srun_cannot_start_a_task_has_failed():
    answers, silent = ask_nodes(NODES, {}, Steps({node: WELL[node] for node in ("n1", "n3")}))
    assert set(answers) == {"n1", "n3"}
    assert silent == {"n2": "srun: No route"}


def test_nodes_that_did_not_answer_with_the_others_are_asked_alone():
    """One that fails ends the step on all, and srun names the first alone."""
    run = Steps({"n3": WELL["n3"]})
    answers, silent = ask_nodes(NODES, {}, run)
    assert set(answers) == {"n3"} and set(silent) == {"n1", "n2"}
    assert [word for word in run.commands[-1][0] if word.startswith("--nodelist")] == ["--nodelist=n2"]


def test_a_check_that_fails_on_one_node_is_its_fault_and_one_that_fails_on_all_is_not():
    answers = {
        "n1": [row("gpu", "FAIL", "none"), row("caches")],
        "n2": [row("gpu", "FAIL", "none"), row("caches", "FAIL", "No space left on device")],
    }
    of_nodes, common = failed_checks(answers)
    assert of_nodes == {"n2": "pytorch-doctor: caches: No space left on device"}
    assert common == {"gpu": "none"}


def write_log(directory, rank, size, node, lines, **end):
    """Write the log of a rank; without `end`, it has no record of its end."""
    directory.mkdir(exist_ok=True)
    start = record("start", {"rank": rank, "size": size, "node": node, "time": 0})
    last = record("end", {"rank": rank, **end, "time": 1}) if end else ""
    (directory / f"rank-{rank:05d}.log").write_text(f"{start}{lines}\n{last}")


def test_the_node_of_a_rank_that_ended_with_an_error_of_its_hardware_is_named(tmp_path):
    launch = tmp_path / "7.1"
    lost = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:1"
    write_log(launch, 0, 2, "n1", lost, status=1)
    write_log(launch, 1, 2, "n2", "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", status=1)
    found = nodes_with_hardware_errors([launch])
    assert list(found) == ["n2"] and "rank 1: torch.AcceleratorError: CUDA error: uncorrectable ECC" in found["n2"]


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: bad batch",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "CUDA error: an illegal memory access was encountered",
        "HW Exception by GPU node-1 (Agent handle: 0x1) reason :GPU Hang",
    ],
)
def test_an_error_that_a_program_can_cause_is_none_of_the_hardware(line):
    assert hardware_error([line]) is None


def test_a_step_is_complete_if_all_ranks_recorded_status_0(tmp_path):
    launch = tmp_path / "7.1"
    assert not is_complete([])
    write_log(launch, 0, 2, "n1", "done", status=0)
    assert not is_complete([launch])
    write_log(launch, 1, 2, "n2", "done", status=0)
    assert is_complete([launch])
    write_log(launch, 1, 2, "n2", "half")
    assert not is_complete([launch])


def test_a_program_that_fails_leaves_no_evidence(monkeypatch, tmp_path):
    monkeypatch.setattr(evidence, "job_state", lambda _: ("RUNNING", NODES))
    monkeypatch.setattr(evidence, "node_states", lambda nodes, _: {node: State("mixed", "none") for node in nodes})
    monkeypatch.setattr(evidence, "ask_nodes", lambda nodes, env: ask_nodes(nodes, env, Steps(WELL)))
    write_log(tmp_path / "7.1", 0, 1, "n1", "ValueError: bad batch", status=1)
    assert evidence.find_failed(NODES, {}, [], [tmp_path / "7.1"]) == {}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("#SBATCH --no-kill", True),
        ("#SBATCH -N3 --no-kill -t 5", True),
        ("#SBATCH -k", True),
        ("# SBATCH --no-kill", False),
        ("#SBATCH --job-name=no-kill", False),
    ],
)
def test_no_kill_is_found_in_a_batch_script(line, found):
    assert is_in_script(["#!/bin/bash", line, "srun x"]) == found


def test_no_kill_is_found_in_the_line_that_submitted_the_job():
    assert is_submitted_with(["sbatch --no-kill -N3 job.sh"])
    assert not is_submitted_with(["sbatch -N3 job.sh"]) and not is_submitted_with(None)
