"""The checks before the first step name nodes, or why no node can be named."""

import pytest
from pytorch_run.preflight import all_reduce_command, check_nodes, named_nodes
from written_steps import Steps, answer, row

ENV = {"PAYLOAD": "/payload"}
COMMAND = ["singularity", "exec", "image.sif", "conda-python-distributed", "-u", "train.py", "--lr", "1"]


def check(run, nodes=("n1", "n2")):
    return check_nodes(list(nodes), ENV, COMMAND, lambda nodes: [f"--nodes={len(nodes)}"], run)


def answers(verdict="n.a."):
    return {node: answer(node, row("gpu", verdict)) for node in ("n1", "n2")}


def test_the_all_reduce_enters_the_image_as_the_users_command_does_and_uses_gpus_if_all_nodes_have_some():
    for verdict, gpu in (("n.a.", []), ("ok", ["--gpu"])):
        run = Steps(answers(verdict))
        result = check(run)
        assert (result.failed, result.fault) == ({}, None)
        options, command, env = run.commands[-1]
        assert command == [*COMMAND[:4], "/payload/allreduce_check.py", "--quick", *gpu]
        assert "--nodes=2" in options and env == ENV


def test_a_command_without_the_launcher_is_checked_by_the_doctor_alone():
    assert all_reduce_command(["python", "train.py"], ENV, gpu=False) is None
    run = Steps(answers())
    result = check_nodes(["n1"], ENV, ["python", "train.py"], lambda _: [], run)
    assert not result.failed and "no all-reduce before the first run" in result.notes[0]


def test_a_node_that_does_not_answer_is_named_without_an_all_reduce():
    run = Steps({"n1": answers()["n1"]})
    assert check(run).failed == {"n2": "srun: No route"}
    assert not any("allreduce_check.py" in word for _, command, _ in run.commands for word in command)


@pytest.mark.parametrize(
    "line",
    [
        "FAIL rank 1 (n2): no answer, and a collective did not end within 15 s: it hangs or has ended",
        "0: FAIL sums: wrong from 4 B on rank 1 (n2.site.org). Repeat the check on parts of these nodes",
    ],
)
def test_a_node_that_the_all_reduce_names_has_failed(line):
    result = check(Steps(answers(), all_reduce=(1, f"size time\n{line}\n")))
    assert list(result.failed) == ["n2"] and result.failed["n2"].startswith("all-reduce: ")


def test_other_words_in_brackets_are_no_nodes():
    text = "FAIL network: rank 0 (n1) uses Socket (NCCL warning: x)\n(n2) is well\n"
    assert list(named_nodes(text, ["n1", "n2"])) == ["n1"]


@pytest.mark.parametrize(("status", "how"), [(2, "exited with status 2"), (None, "did not end within 180 s")])
def test_an_all_reduce_that_names_no_node_is_a_fault_with_its_last_lines(status, how):
    result = check(Steps(answers(), all_reduce=(status, "FATAL: could not open image\n")))
    assert how in result.fault and "could not open image" in result.fault and not result.failed


def test_a_check_that_fails_on_all_nodes_is_a_note():
    result = check(Steps({node: answer(node, row("gpu", "FAIL", "no GPU")) for node in ("n1", "n2")}))
    assert not result.failed and result.notes == ["all nodes: pytorch-doctor: gpu: no GPU"]
