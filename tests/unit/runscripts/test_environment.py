"""The variables that a rank starts Python with."""

import pytest
from pytorch_launch.environment import variables
from pytorch_launch.rendezvous import LOWEST_PORT, SPAN, step_port
from pytorch_launch.world import discover


def decide(env, **facts):
    facts = {"mask_cpus": 4, "node_cpus": 8, "pid": 1, **facts}
    return variables(env, discover(env, "vm"), **facts)


def test_a_rank_gets_all_that_torch_asks_for(step):
    assert decide(step) == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "nid001002",
        "MASTER_PORT": str(step_port(7, 0)),
        "OMP_NUM_THREADS": "4",
    }


def test_the_users_threads_stay(step):
    assert decide({**step, "OMP_NUM_THREADS": "3"})["OMP_NUM_THREADS"] == "3"


def test_an_unbound_rank_shares_the_cpus_of_the_step(step):
    assert decide(step, mask_cpus=8, node_cpus=128)["OMP_NUM_THREADS"] == "4"


def test_an_unbound_rank_shares_the_node_where_slurm_is_silent(step):
    del step["SLURM_CPUS_ON_NODE"]
    assert decide(step, mask_cpus=128, node_cpus=128)["OMP_NUM_THREADS"] == "64"


def test_what_the_user_asked_for_per_task_counts(step):
    assert decide({**step, "SLURM_CPUS_PER_TASK": "2"})["OMP_NUM_THREADS"] == "2"


def test_a_single_process_starts_to_look_for_a_port_from_its_number():
    first = int(decide({}, pid=100)["MASTER_PORT"])
    second = int(decide({}, pid=10100)["MASTER_PORT"])
    assert LOWEST_PORT <= first < second < LOWEST_PORT + SPAN


@pytest.mark.parametrize("threads", [None, "1"])
def test_a_worker_of_torchrun_has_all_it_needs(threads):
    env = {
        "TORCHELASTIC_RUN_ID": "none",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "0",
    }
    if threads:
        env["OMP_NUM_THREADS"] = threads
    assert decide(env) == {}
