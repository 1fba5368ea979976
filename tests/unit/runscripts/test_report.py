"""The line about one rank."""

import pytest
from pytorch_launch.report import core_list, line
from pytorch_launch.world import discover


def test_the_line_says_what_was_decided_and_why(step):
    after = {"MASTER_ADDR": "nid001002", "MASTER_PORT": "10427", "OMP_NUM_THREADS": "2"}
    said = line(discover(step, "vm"), step, after, {8, 9}, "/tmp/pytorch-1000/7-nid001003")  # noqa: S108
    for fact in (
        "nid001003: ",
        "rank 3 of 4",
        "local rank 1 of 2",
        "node rank 1",
        "nid001002:10427",
        "Slurm step 7.0",
        "cores 8-9",
        "OMP_NUM_THREADS 2",
        "/tmp/pytorch-1000/7-nid001003",  # noqa: S108
        "exported before: nothing",
    ):
        assert fact in said
    assert "\n" not in said


def test_what_the_user_decided_is_said(step):
    before = {**step, "MASTER_PORT": "4000", "OMP_NUM_THREADS": "1"}
    said = line(discover(before, "vm"), before, before, {0}, None)
    assert said.endswith("exported before: MASTER_PORT, OMP_NUM_THREADS")
    assert "caches in their default places" in said


@pytest.mark.parametrize(
    ("cpus", "text"),
    [({0}, "0"), ([8, 2, 1, 0], "0-2,8"), ({1, 3, 5}, "1,3,5"), ({0, 1, 64, 65}, "0-1,64-65")],
)
def test_cores_are_listed_as_the_kernel_lists_them(cpus, text):
    assert core_list(cpus) == text
