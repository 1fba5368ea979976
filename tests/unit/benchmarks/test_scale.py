"""Ranks of worlds that never ran."""

import os
import subprocess

import hostlist
import pytest

from benchmarks import scale
from benchmarks.comparison import TREE
from benchmarks.step_variables import step_variables


@pytest.mark.parametrize("count", [1, 2, 7, 100, 4096])
@pytest.mark.parametrize("make", [scale.consecutive, scale.scattered])
def test_a_world_has_as_many_nodes_as_its_list_stands_for(make, count):
    world = make(count)
    assert len(world.nodes) == count
    assert hostlist.expand_hostlist(world.node_list) == world.nodes


def test_a_scattered_world_has_a_list_of_many_ranges_with_gaps_between():
    world = scale.scattered(4096)
    assert world.node_list.count(",") > 900
    assert int(world.nodes[-1][3:]) > 4096 + 900


@pytest.mark.parametrize("world", scale.WORLDS)
def test_the_launch_script_takes_the_variables_for_those_of_a_step(world):
    size = 8 * len(world.nodes)
    for rank in scale.representatives(size):
        step = step_variables(node_list=world.node_list, nodes=world.nodes, tasks_per_node=8, rank=rank)
        output = subprocess.run(
            [TREE / "runscripts" / "conda-python-distributed", "--dry-run"],
            env={"PATH": os.environ["PATH"], **step},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        printed = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
        expected = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank % 8, "LOCAL_WORLD_SIZE": 8}
        assert {name: int(printed[name]) for name in expected} == expected
        assert printed["MASTER_ADDR"] == "nid000001"
        assert world.nodes[rank // 8] == step["SLURMD_NODENAME"]


def test_the_first_a_middle_and_the_last_rank_are_measured():
    assert scale.representatives(32768) == (0, 16384, 32767)


def test_a_long_node_list_is_shortened_for_its_cell():
    assert scale.shorten("nid[1-2]") == "`nid[1-2]`"
    assert scale.shorten("nid[" + 500 * "1,2," + "3]") == "`nid[1,2,1,2,1,2,1,2,1,2,1,2,...`, 2006 characters"
