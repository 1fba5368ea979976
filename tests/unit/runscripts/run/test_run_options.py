"""The command line of pytorch-run, and the steps that follow from it."""

import pytest
from pytorch_run.options import HELP, RETRIES, OptionError, parse
from pytorch_run.plan import Plan

ALLOCATION = {"SLURM_TASKS_PER_NODE": "1(x3)"}
NODES = ["n1", "n2", "n3"]


def plan(line, nodes=NODES, env=ALLOCATION):
    return Plan(parse([*line.split(), "--", "conda-python-distributed", "train.py"]), nodes, env)


def test_own_options_and_those_of_srun_may_be_mixed():
    line = "-l --spare 1 -N2 --gpus-per-node=4 --retries=5 -- singularity exec x -N9 --spare 7"
    options = parse(line.split())
    assert (options.spare, options.nodes, options.retries) == (1, 2, 5)
    assert options.srun == ["-l", "--gpus-per-node=4"]
    assert options.command == ["singularity", "exec", "x", "-N9", "--spare", "7"]
    assert parse(["--", "x"]).retries == RETRIES and f"default: {RETRIES}" in HELP


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("-N2 train.py", "no `--`"),
        ("-N2 --", "no command after"),
        ("-N2-4 -- x", "--nodes=2-4 is not a number of nodes"),
        ("-w n1 -- x", "-w names nodes"),
        ("--retries -- x", "--retries has no value"),
        ("--min-nodes 0 -- x", "--min-nodes=0 is not a number of nodes"),
    ],
)
def test_a_line_that_cannot_be_run_is_an_error(line, fault):
    with pytest.raises(OptionError, match=fault):
        parse(line.split())


def test_the_spare_nodes_are_the_last_ones():
    assert plan("--spare 1").next_nodes() == ["n1", "n2"]
    assert plan("-N1").next_nodes() == ["n1"]


def test_an_allocation_without_room_for_spare_nodes_is_an_error():
    with pytest.raises(OptionError, match="-N3 and --spare 1 need 4 nodes, and the allocation has 3"):
        plan("-N3 --spare 1")
    with pytest.raises(OptionError, match="--spare 3 need 4 nodes"):
        plan("--spare 3")


@pytest.mark.parametrize(
    ("line", "env", "tasks"),
    [
        ("--ntasks-per-node=2", {"SLURM_TASKS_PER_NODE": "4(x3)"}, ["--ntasks-per-node=2"]),
        ("-n8 -N2", {}, ["--ntasks=8"]),
        ("", {"SLURM_TASKS_PER_NODE": "4(x3)"}, ["--ntasks-per-node=4"]),
        ("", {"SLURM_TASKS_PER_NODE": "4(x2),3", "SLURM_NTASKS_PER_NODE": "4"}, ["--ntasks-per-node=4"]),
        ("", {"SLURM_TASKS_PER_NODE": "4(x2),3"}, []),
    ],
)
def test_a_step_has_the_tasks_per_node_of_the_line_else_of_the_allocation(line, env, tasks):
    found = plan(f"{line} --spare 1", env=env).step_options(["n1", "n2"])
    assert [option for option in found if option.startswith("--ntasks")] == tasks
    assert "--nodes=2" in found and "--nodelist=n1,n2" in found


def test_a_node_that_failed_is_replaced_and_without_a_spare_there_is_a_sentence():
    said, found = [], plan("--spare 1")
    found.leave_out("n1", "Slurm reports down", said.append)
    assert found.next_nodes() == ["n2", "n3"] and found.shortage is None
    found.leave_out("n3", "no answer", said.append)
    assert found.shortage.startswith("No spare node is left: 1 of the 2 nodes that it needs, as n1,n3 failed. ")
    assert "--exclude=n1,n3" in found.shortage
    assert said == ["n1 failed: Slurm reports down", "n3 failed: no answer"]


@pytest.mark.parametrize("line", ["--min-nodes 1", "--nnodes=1:3", "--nnodes 1:3"])
def test_a_world_that_may_shrink_continues_on_fewer_nodes(line):
    own, torchrun = (line, "") if line.startswith("--min") else ("", line)
    options = parse(f"{own} -n6 -- torchrun-distributed {torchrun} train.py".split())
    found = Plan(options, NODES, {})
    found.leave_out("n1", "no answer", str)
    found.leave_out("n2", "no answer", str)
    assert found.shortage is None and found.next_nodes() == ["n3"]
    assert "--ntasks=2" in found.step_options(["n3"])


def test_options_of_the_script_are_not_those_of_torchrun():
    assert parse(["--", "conda-python-distributed", "train.py", "--nnodes=1:3"]).min_nodes is None
    assert parse(["--", "torchrun-distributed", "--nnodes=3", "train.py"]).min_nodes is None
