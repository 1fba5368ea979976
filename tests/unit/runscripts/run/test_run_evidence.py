"""A node failed if Slurm or the doctor names it; a program's own failure names none."""

import json

import pytest
from pytorch_launch import LaunchError
from pytorch_run import nodes
from pytorch_run.nodes import check_nodes, killed_nodes, lost_nodes

NODES = ["n1", "n2", "n3"]
JOB = nodes.Job("7", ["--jobid=7"], None, None)


@pytest.fixture
def checked(monkeypatch, capfd):
    """A function that returns what `check_nodes` finds and prints; `failed` has failed checks of nodes that answer."""

    def check(failed, names=NODES):
        def call(command, _seconds, **_):
            asked.append(command)
            (asked_nodes,) = (word.split("=", 1)[1].split(",") for word in command if word.startswith("--nodelist="))
            silent = [node for node in asked_nodes if node not in failed]
            lines = [f"srun: error: Task launch for StepId=7.1 failed on node {node}: No route" for node in silent[:1]]
            for node in asked_nodes if not silent else ():
                rows = [{"check": name, "verdict": "FAIL", "finding": text} for name, text in failed[node].items()]
                lines.append(json.dumps({"node": node, "checks": [{"check": "home", "verdict": "ok"}, *rows]}))
            return 0, "\n".join(lines), ""

        asked = []
        monkeypatch.setattr(nodes, "call", call)
        found = check_nodes(names, JOB)
        assert all("--time=3" in command for command in asked)
        return found, capfd.readouterr().err

    return check


@pytest.mark.parametrize("state", ["down", "down*", "allocated*", "failing", "powering_down", "unknown"])
def test_a_node_that_slurm_reports_as_down_or_silent_has_failed(state):
    found = lost_nodes(NODES, NODES, {"n2": (state, " (Not responding)")})
    assert found == {"n2": f"Slurm reports {state} (Not responding)"}


def test_a_node_that_is_drained_during_a_step_or_no_longer_of_the_job_has_failed():
    """But not one that was drained before, nor if Slurm does not answer."""
    states = {"n1": ("draining", " (GPU 3)"), "n2": ("draining", " (update)"), "n3": ("mixed", "")}
    assert lost_nodes(NODES, NODES, states, drained=["n2"]) == {"n1": "Slurm reports draining (GPU 3)"}
    assert lost_nodes(NODES, ["n1", "n3"], {}) == {"n2": "Slurm removed it from the job"}
    assert lost_nodes(NODES, None, {}) == {}


def test_nodes_where_srun_cannot_start_a_task_have_failed(checked):
    """One that fails ends the step on all, and srun names the first alone: the others are asked alone."""
    assert checked({"n1": {}, "n3": {}}) == ({"n2": "srun: No route"}, "")
    assert checked({"n3": {}})[0] == {"n1": "srun: No route", "n2": "srun: No route"}
    # a step that starts nowhere names no node
    with pytest.raises(LaunchError, match="no node answers pytorch-doctor: n1: srun: No route"):
        checked({})


def test_a_check_that_fails_on_one_node_is_its_fault_and_one_that_fails_on_all_is_not(checked):
    failed = {"n1": {"gpu": "none"}, "n2": {"gpu": "none", "caches": "No space left on device"}}
    own = {"n2": "pytorch-doctor: caches: No space left on device"}
    assert checked(failed, ["n1", "n2"]) == (own, "pytorch-run: all nodes: pytorch-doctor: gpu: none\n")
    assert checked(dict.fromkeys(NODES, {})) == ({}, "")


KILLED, TERMINATED = "srun: error: n2: tasks 4-7: Killed", "srun: error: n1: tasks 0-3: Terminated"


@pytest.mark.parametrize(
    ("lines", "failed"),
    [
        ([KILLED, TERMINATED], ["n2"]),
        ([KILLED, "srun: error: n3: tasks 8-11: Killed", TERMINATED], ["n2"]),
        # of a step that Slurm ends, those that ignore SIGTERM are killed
        (["srun: error: n1: task 0: Exited with exit code 1", TERMINATED, KILLED], []),
        ([TERMINATED, KILLED], []),
        # one task of a node, a lack of memory, a signal to the whole step
        (["srun: error: n2: task 4: Killed", TERMINATED, "srun: error: n2: tasks 5-7: Terminated"], []),
        (["srun: error: n2: tasks 4-7: Out Of Memory", TERMINATED], []),
        (["srun: error: n[1-2]: tasks 0-7: Killed"], []),
        # Slurm then kills the tasks of the healthy nodes
        (["srun: error: Node failure on n2", "srun: error: n1: tasks 0-3: Killed"], ["n2"]),
        ([], []),
    ],
)
def test_sruns_messages_name_the_node_that_failed_first(lines, failed):
    assert list(killed_nodes(lines)) == failed
