"""The command line of pytorch-run, and the steps that follow from it."""

import pytest
from pytorch_launch import LaunchError
from pytorch_run import run
from pytorch_run.run import parse

JOB = {"SLURM_JOB_ID": "7"}


@pytest.fixture
def plan(monkeypatch):
    """A function that returns the Run of a command line in a job on three nodes."""
    monkeypatch.setattr(run, "node_states", lambda *_: {})
    monkeypatch.setattr(run, "job_state", lambda *_: ("RUNNING", ["n1", "n2", "n3"]))

    def make(line, tasks=3, **env):
        sizes = {"SLURM_NTASKS": str(tasks), "SLURM_JOB_NUM_NODES": "3"} if tasks else {}
        return run.Run(parse([*line.split(), "--", "conda-python-distributed"]), {**JOB, **sizes, **env})

    return make


def chosen(plan):
    return plan.nodes[: plan.wanted]


def test_own_options_and_those_of_srun_may_be_mixed():
    line = "-l --spare 1 -N2 --gpus-per-node=4 --retries=5 -- singularity exec x -N9 --spare 7"
    options = parse(line.split())
    assert (options.spare, options.nodes, options.retries) == (1, 2, 5)
    assert options.srun == ["-l", "--gpus-per-node=4"]
    assert options.command == ["singularity", "exec", "x", "-N9", "--spare", "7"]
    assert parse(["--", "x"]).retries == 3
    of_srun = ["-t", "5", "--cpus-per-task", "4", "-l"]
    assert parse([*of_srun[:2], "--spare", "1", *of_srun[2:], "--", "x"]).srun == of_srun


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("-N2 train.py", "no command after `--`"),
        ("-N2 --", "no command after"),
        ("-N2-4 -- x", "invalid int value: .2-4."),
        ("-w n1 -- x", "-w names nodes"),
        ("--retries -- x", "--retries: expected one argument"),
        ("--retries=-1 -- x", "--retries=-1 is not a number from 0"),
        ("--min-nodes 0 -- x", "--min-nodes=0 is not a number from 1"),
    ],
)
def test_a_line_that_cannot_be_run_is_an_error(line, fault):
    with pytest.raises(LaunchError, match=fault):
        parse(line.split())


@pytest.mark.parametrize(
    ("line", "nodes"),
    [("--spare 1", "n1 n2"), ("-N1", "n1"), ("-n2", "n1 n2"), ("-n2 -N3", "n1 n2"), ("-x n2", "n1 n3")],
)
def test_the_spare_nodes_are_the_last_ones_and_fewer_tasks_need_as_many_nodes(plan, line, nodes):
    assert chosen(plan(line)) == nodes.split()


def test_an_allocation_without_room_for_spare_nodes_is_an_error(plan):
    with pytest.raises(LaunchError, match="-N3 and --spare 1 need 4 nodes, and the allocation has 3"):
        plan("-N3 --spare 1")
    with pytest.raises(LaunchError, match="--spare 3 need 4 nodes"):
        plan("--spare 3")


@pytest.mark.parametrize(
    ("line", "tasks", "options"),
    [
        ("--ntasks-per-node=2", 12, []),
        ("-n8 -N2", 3, ["--ntasks=8"]),
        ("-n2", 3, ["--ntasks=2"]),
        ("", 12, ["--ntasks=8"]),
        ("", None, []),  # srun starts one on each node, whatever SLURM_TASKS_PER_NODE is
    ],
)
def test_a_step_has_the_tasks_of_the_line_else_of_the_allocation(plan, line, tasks, options):
    assert plan(f"{line} --spare 1", tasks, SLURM_TASKS_PER_NODE="4(x3)").tasks(2) == options


def test_tasks_that_differ_between_nodes_are_not_divided(plan):
    assert plan("", 5).tasks(3) == ["--ntasks=5"]
    with pytest.raises(LaunchError, match="the job has 5 tasks on 3 nodes, and a step has 2 nodes. Name the tasks"):
        plan("--spare 1", 5)


def test_a_node_that_failed_is_replaced_and_without_a_spare_there_is_a_sentence(plan, capfd):
    found = plan("--spare 1")
    found.leave_out({"n1": "Slurm reports down"})
    assert chosen(found) == ["n2", "n3"] and found.shortage() is None
    found.leave_out({"n3": "no answer"})
    assert found.shortage().startswith("No spare node is left: 1 of the 2 nodes that it needs, as n1,n3 failed. ")
    assert "--exclude=n1,n3" in found.shortage()
    assert "pytorch-run: n1 failed: Slurm reports down\npytorch-run: n3 failed: no answer\n" in capfd.readouterr().err


def test_a_world_that_may_shrink_continues_on_fewer_nodes(plan):
    found = plan("--min-nodes 1 -n6")
    found.leave_out({"n1": "no answer", "n2": "no answer"})
    assert found.shortage() is None and chosen(found) == ["n3"]
    assert found.tasks(1) == ["--ntasks=2"]
