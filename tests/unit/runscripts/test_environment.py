"""The variables that a rank starts Python with."""

import pytest
from pytorch_launch.launchers import discover
from pytorch_launch.plan import AGENT_THREADS, compute_variables, conditional, is_name, openmp_warnings
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


def test_every_rank_of_4096_nodes_of_8_gpus_gets_its_own_place_in_one_world(step):
    step.update(
        variables(
            "SLURM_STEP_NODELIST=nid[000001-004096] SLURM_STEP_NUM_NODES=4096 SLURM_STEP_NUM_TASKS=32768 "
            "SLURM_NTASKS=32768 SLURM_STEP_TASKS_PER_NODE=8(x4096)"
        ),
    )
    for rank in range(32768):
        node, local_rank = divmod(rank, 8)
        step.update(SLURM_PROCID=str(rank), SLURM_LOCALID=str(local_rank), SLURM_NODEID=str(node))
        step["SLURMD_NODENAME"] = f"nid{node + 1:06}"
        assert decide(step) == {
            "RANK": str(rank),
            "WORLD_SIZE": "32768",
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": "8",
            "GROUP_RANK": str(node),
            "MASTER_ADDR": "nid000001",
            "MASTER_PORT": "10427",
            "PYTORCH_LAUNCH_ID": "7.0",
            "OMP_NUM_THREADS": "4",
        }


def test_the_users_threads_stay(step):
    assert "OMP_NUM_THREADS" not in decide({**step, "OMP_NUM_THREADS": "3"})


def test_visibility_that_was_put_right_is_set(step):
    class Devices:
        changes = {"HIP_VISIBLE_DEVICES": "0"}

    assert decide(step, devices=Devices)["HIP_VISIBLE_DEVICES"] == "0"


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
    module.update(
        variables(
            "SLURM_STEP_NODELIST=nid001003 SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=2 SLURM_STEP_TASKS_PER_NODE=2 "
            "SLURM_NODEID=0 SLURM_PROCID=1"
        ),
    )
    assert conditional(module, discover(module, "vm")) == {"RES_OPTIONS": "timeout:1"}
    module.update(
        SLURM_STEP_NUM_TASKS="1", SLURM_NTASKS="1", SLURM_STEP_TASKS_PER_NODE="1", SLURM_PROCID="0", SLURM_LOCALID="0"
    )
    assert conditional(module, discover(module, "vm")) == {}


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
        module["NCCL_NET"] = value
        assert "NCCL_NET" not in decide(module)


def test_a_prefix_without_a_name_is_nobodys_variable(module):
    assert "" not in decide({**module, "PYTORCH_MULTI_NODE_": "x"})


@pytest.mark.parametrize("name", ["A;touch x;B", "A B", "1A", "Ä", "A=", ""])
def test_what_is_no_name_of_a_shells_variable_is_left_out(step, name):
    assert name not in decide({**step, f"PYTORCH_DISTRIBUTED_{name}": "1"})


def test_names_are_checked_on_python_3_6_too():
    """pytorch-doctor runs on a host's Python; str.isascii came with 3.7."""

    class Text(str):
        def __getattribute__(self, name):
            if name == "isascii":
                raise AttributeError(name)
            return super().__getattribute__(name)

    assert [is_name(Text(text)) for text in ("NCCL_NET", "1X", "", "ø", "a-b")] == [True, False, False, False, False]


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
