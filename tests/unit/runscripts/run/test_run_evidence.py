"""A node failed if Slurm or the doctor names it; a program's own failure names none."""

import pytest
from pytorch_run import evidence
from pytorch_run.nodes import ask_nodes, failed_checks
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


def test_a_program_that_fails_leaves_no_evidence(monkeypatch):
    monkeypatch.setattr(evidence, "job_state", lambda _: ("RUNNING", NODES))
    monkeypatch.setattr(evidence, "node_states", lambda nodes, _: {node: State("mixed", "none") for node in nodes})
    monkeypatch.setattr(evidence, "ask_nodes", lambda nodes, env: ask_nodes(nodes, env, Steps(WELL)))
    assert evidence.find_failed(NODES, {}, []) == {}
