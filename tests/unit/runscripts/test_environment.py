"""The variables that a rank starts Python with."""

import pytest
from pytorch_launch.launchers import discover
from pytorch_launch.plan import AGENT_THREADS, compute_variables, conditional, openmp_warnings
from pytorch_launch.rendezvous import LOWEST_PORT, SPAN, choose_rendezvous
from pytorch_launch.topology import Node
from variables import variables

TORCHRUN = variables("TORCHELASTIC_RUN_ID=none RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK=0")


class NoDevices:
    changes = {}


def decide(env, **facts):
    number = facts.pop("origin", 1)
    kernel = Node(host="vm", pid=number, launcher=number)
    world = discover(env, kernel.host)
    place, launch, _ = (None, None, []) if world.exported else choose_rendezvous(env, world, kernel)
    return compute_variables(env, world, **{"threads": 4, "devices": NoDevices, **facts}, place=place, launch=launch)


def test_the_users_threads_stay_and_visibility_that_was_put_right_is_set(step):
    class Devices:
        changes = {"HIP_VISIBLE_DEVICES": "0"}

    changes = decide({**step, "OMP_NUM_THREADS": "3"}, devices=Devices)
    assert changes["HIP_VISIBLE_DEVICES"] == "0" and "OMP_NUM_THREADS" not in changes


def test_a_single_process_starts_to_look_for_a_port_from_its_number():
    first = int(decide({}, origin=100)["MASTER_PORT"])
    second = int(decide({}, origin=10100)["MASTER_PORT"])
    assert LOWEST_PORT <= first < second < LOWEST_PORT + SPAN


def test_a_worker_of_torchrun_keeps_torchruns_world_and_the_users_threads():
    assert decide(TORCHRUN) == {"OMP_NUM_THREADS": "4"}
    assert decide({**TORCHRUN, "OMP_NUM_THREADS": "1"}) == {}


def test_a_worker_of_our_own_agent_gets_threads_of_its_own():
    env = {**TORCHRUN, "OMP_NUM_THREADS": "8", AGENT_THREADS: "8"}
    assert decide(env) == {"OMP_NUM_THREADS": "4", AGENT_THREADS: None}
    env["OMP_NUM_THREADS"] = "2"  # the user's, inside the agent
    assert decide(env) == {AGENT_THREADS: None}


@pytest.fixture
def module(step):
    """A step in which a module has set what depends on the world."""
    return {**step, "PYTORCH_MULTI_NODE_NCCL_NET": "AWS Libfabric", "PYTORCH_DISTRIBUTED_RES_OPTIONS": "timeout:1"}


def test_what_a_module_wants_on_several_nodes_is_set_there_alone(module):
    assert conditional(module, discover(module, "vm")) == {"NCCL_NET": "AWS Libfabric", "RES_OPTIONS": "timeout:1"}
    for size, rank, wanted in ((2, 1, {"RES_OPTIONS": "timeout:1"}), (1, 0, {})):
        text = "SLURM_STEP_NUM_TASKS={0} SLURM_NTASKS={0} SLURM_STEP_TASKS_PER_NODE={0} SLURM_NODEID=0 SLURM_PROCID={1}"
        one_node = variables(f"{text.format(size, rank)} SLURM_LOCALID={rank} SLURM_STEP_NODELIST=nid001003")
        assert conditional({**module, **one_node}, discover({**module, **one_node}, "vm")) == wanted


def test_what_a_module_wants_on_one_node_is_set_there_alone(step, batch_script):
    wanted = {"PYTORCH_MULTI_NODE_NCCL_NET": "OFI", "PYTORCH_ONE_NODE_NCCL_NET": "Socket"}
    on_one_node = variables("SLURM_STEP_NODELIST=nid001003 SLURM_STEP_TASKS_PER_NODE=4 SLURM_NODEID=0 SLURM_LOCALID=3")
    for env, value in (
        ({**wanted, **step}, "OFI"),
        ({**wanted, **step, **on_one_node}, "Socket"),
        (wanted, "Socket"),
        ({**wanted, "NCCL_NET": "IB"}, None),
    ):
        assert conditional(env, discover(env, "vm")).get("NCCL_NET") == value
    # a batch script in an allocation of several nodes may start srun
    batch_script.update(wanted, SLURM_JOB_NUM_NODES="3")
    assert conditional(batch_script, discover(batch_script, "vm")) == {}


def test_the_users_own_export_wins_over_the_modules(module):
    for value in ("Socket", ""):
        assert "NCCL_NET" not in decide({**module, "NCCL_NET": value})


@pytest.mark.parametrize("name", ["A;touch x;B", "A B", "1A", "Ä", "A=", ""])
def test_what_is_no_name_of_a_shells_variable_is_left_out(step, name):
    assert name not in decide({**step, f"PYTORCH_DISTRIBUTED_{name}": "1", f"PYTORCH_MULTI_NODE_{name}": "x"})


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({"OMP_PROC_BIND": "true"}, "OMP_PROC_BIND"),
        ({"OMP_PROC_BIND": "SPREAD", "OMP_PLACES": "cores"}, "OMP_PROC_BIND and OMP_PLACES"),
        ({"OMP_PLACES": "cores"}, "OMP_PLACES"),
        ({"GOMP_CPU_AFFINITY": "0-3"}, "GOMP_CPU_AFFINITY"),
        ({"KMP_AFFINITY": "granularity=fine,compact"}, "KMP_AFFINITY"),
        ({"OMP_PROC_BIND": "FALSE", "OMP_PLACES": "cores"}, None),
        ({"KMP_AFFINITY": "none"}, None),
        ({}, None),
    ],
)
def test_variables_that_bind_a_rank_and_its_processes_to_one_core_are_named(variables, names):
    warnings = openmp_warnings(variables, {0, 1})
    assert [problem.remedy for problem in warnings] == ([f"Unset {names}"] if names else [])
    assert openmp_warnings(variables, {0}) == []
