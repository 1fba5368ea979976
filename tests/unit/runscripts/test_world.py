"""Which world a process belongs to, by the variables its launcher set."""

import pytest
from pytorch_launch.launchers import discover
from pytorch_launch.world import WorldError
from variables import variables


@pytest.fixture
def torchrun():
    """What torchrun exports to its second worker on the second node."""
    return variables(
        "TORCHELASTIC_RUN_ID=none RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 MASTER_ADDR=node7 "
        "MASTER_PORT=40001"
    )


def test_a_task_of_a_step_is_a_rank(step):
    world = discover(step, "vm")
    assert world.variables() == variables("RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1")
    assert (world.job, world.step, world.source) == (7, 0, "Slurm step 7.0")
    assert world.node == "nid001003"
    assert not world.exported


@pytest.mark.parametrize(("name", "other"), [("SLURM_STEP_ID", "SLURM_STEPID"), ("SLURM_STEPID", "SLURM_STEP_ID")])
def test_either_name_of_the_step_number_will_do(step, name, other):
    del step[other]
    step[name] = "12"
    assert discover(step, "vm").step == 12


@pytest.mark.parametrize("size", [1, 3])
def test_torchrun_with_fewer_ranks_than_the_step_has_tasks_was_started_outside_of_it(torchrun, step, size):
    torchrun.update(RANK="0", WORLD_SIZE=str(size), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    with pytest.raises(WorldError, match=rf"WORLD_SIZE={size}, but SLURM_STEP_NUM_TASKS=4\. Unset .*TORCHELASTIC"):
        discover({**step, **torchrun}, "vm")


def test_a_launch_inside_one_with_virtual_local_ranks_is_no_contradiction(step):
    step.update(RANK="3", LOCAL_RANK="0", PYTORCH_LAUNCH_VIRTUAL_LOCAL_RANK="1")
    assert discover(step, "vm").local_rank == 1


def test_the_host_name_stands_in_for_an_unnamed_node(step):
    del step["SLURMD_NODENAME"]
    assert discover(step, "vm").node == "vm"


@pytest.mark.parametrize(
    ("tasks", "node", "size", "local_size"),
    [("2(x3),1", 0, 7, 2), ("2(x3),1", 2, 7, 2), ("2(x3),1", 3, 7, 1), ("1,3,2(x2)", 1, 8, 3)],
)
def test_the_ranks_of_a_node_are_counted_where_nodes_differ(step, tasks, node, size, local_size):
    step.update(
        SLURM_STEP_TASKS_PER_NODE=tasks,
        SLURM_STEP_NUM_TASKS=str(size),
        SLURM_NTASKS=str(size),
        SLURM_NODEID=str(node),
        SLURM_LOCALID="0",
        SLURM_STEP_NODELIST="nid[001-004]",
        SLURMD_NODENAME=f"nid00{node + 1}",
    )
    assert discover(step, "vm").local_size == local_size


def test_what_slurm_reports_of_cpus_is_kept(step):
    world = discover({**step, "SLURM_CPUS_PER_TASK": "4"}, "vm")
    assert (world.node_cpus, world.cpus_per_task) == (8, 4)
    del step["SLURM_CPUS_ON_NODE"]
    world = discover(step, "vm")
    assert (world.node_cpus, world.cpus_per_task) == (None, None)


@pytest.mark.parametrize(
    ("ports", "first"),
    [("12000-12003", 12000), ("12000,12005", 12000), ("1", 1), ("65535", 65535), ("", None)],
)
def test_the_first_reserved_port_is_taken(step, ports, first):
    assert discover({**step, "SLURM_STEP_RESV_PORTS": ports}, "vm").reserved_port == first


@pytest.mark.parametrize("ports", ["(null)", "0-3", "65536", "-12000", ","])
def test_a_reservation_that_starts_with_no_port_is_an_error(step, ports):
    with pytest.raises(WorldError, match="SLURM_STEP_RESV_PORTS="):
        discover({**step, "SLURM_STEP_RESV_PORTS": ports}, "vm")


def test_a_batch_script_is_a_single_process(batch_script):
    world = discover(batch_script, "vm")
    assert (world.rank, world.size, world.first_host) == (0, 1, "127.0.0.1")
    assert (world.job, world.step, world.source) == (7, None, "single process")
    assert world.node == "nid001001"


@pytest.mark.parametrize("mark", ["SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS"])
def test_a_step_number_alone_makes_no_step(batch_script, step, mark):
    batch_script["SLURM_STEP_ID"] = "4294967291"
    batch_script[mark] = step[mark]
    assert discover(batch_script, "vm").size == 1


@pytest.mark.parametrize("lost", ["SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", ("SLURM_STEP_ID", "SLURM_STEPID")])
def test_a_rank_that_lost_its_step_does_not_train_alone(step, lost):
    for name in [lost] if isinstance(lost, str) else lost:
        del step[name]
    with pytest.raises(WorldError, match="SLURM_PROCID=3 .* missing"):
        discover(step, "vm")


def test_a_process_without_any_launcher_is_a_world_of_one():
    world = discover({}, "laptop")
    assert world.variables() == variables("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK=0")
    assert (world.node, world.job, world.step) == ("laptop", None, None)


def test_torchrun_comes_before_the_step_it_runs_in(torchrun, step):
    world = discover({**step, **torchrun}, "vm")
    assert world.exported
    assert world.variables() == {
        name: torchrun[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    }
    assert (world.first_host, world.job, world.source) == ("node7", 7, "torchrun run none")
    assert world.node == "nid001003"
    assert discover(torchrun, "node8").node == "node8"


@pytest.mark.parametrize(("name", "bound"), [("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")])
def test_a_worker_of_torchrun_outside_its_world_is_an_error(torchrun, name, bound):
    torchrun[name] = torchrun[bound]
    with pytest.raises(WorldError, match=f"{name}={torchrun[bound]} is outside .*{bound}={torchrun[bound]}"):
        discover(torchrun, "vm")


def test_a_worker_of_torchrun_without_a_rank_is_an_error(torchrun):
    del torchrun["RANK"]
    with pytest.raises(WorldError, match="RANK is not set, but other variables of its launcher are"):
        discover(torchrun, "vm")


@pytest.mark.parametrize(
    ("changes", "first", "second"),
    [
        ({"SLURM_PROCID": "4"}, "SLURM_PROCID=4 is outside 0 to 3", "SLURM_STEP_NUM_TASKS=4"),
        ({"SLURM_LOCALID": "2"}, "SLURM_LOCALID=2", "SLURM_STEP_TASKS_PER_NODE=2(x2)"),
        ({"SLURM_NODEID": "2"}, "SLURM_NODEID=2", "SLURM_STEP_TASKS_PER_NODE=2(x2)"),
        ({"SLURM_STEP_NUM_TASKS": "5", "SLURM_NTASKS": "5"}, "SLURM_STEP_NUM_TASKS=5", "TASKS_PER_NODE=2(x2)"),
        ({"RANK": "0"}, "RANK=0", "SLURM_PROCID=3"),
        ({"WORLD_SIZE": "8"}, "WORLD_SIZE=8", "SLURM_STEP_NUM_TASKS=4"),
        ({"LOCAL_RANK": "0"}, "LOCAL_RANK=0", "SLURM_LOCALID=1"),
        ({"LOCAL_WORLD_SIZE": "4"}, "LOCAL_WORLD_SIZE=4", "SLURM_STEP_TASKS_PER_NODE=2(x2)"),
        ({"GROUP_RANK": "0"}, "GROUP_RANK=0", "SLURM_NODEID=1"),
    ],
)
def test_variables_that_contradict_each_other_are_both_named(step, changes, first, second):
    with pytest.raises(WorldError) as raised:
        discover({**step, **changes}, "vm")
    assert first in str(raised.value)
    assert second in str(raised.value)


def test_exports_that_agree_with_the_step_are_welcome(step):
    exported = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "GROUP_RANK": ""}
    assert discover({**step, **exported}, "vm").rank == 3


def test_a_leftover_world_size_does_not_make_a_single_process_wait(batch_script):
    with pytest.raises(WorldError, match="WORLD_SIZE=8 .* no srun, mpirun or torchrun"):
        discover({**batch_script, "WORLD_SIZE": "8"}, "vm")


@pytest.mark.parametrize(
    "name",
    [
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
        "SLURM_CPUS_ON_NODE",
        "SLURM_CPUS_PER_TASK",
    ],
)
@pytest.mark.parametrize("value", ["two", "-1", "1.5", "²", " 1", "1" * 5000])
def test_a_value_that_is_no_number_is_named(step, name, value):
    with pytest.raises(WorldError) as raised:
        discover({**step, name: value}, "vm")
    shown = value if len(value) < 18 else f"{value[:18]}..."
    assert f"{name}={shown} is not a number of at most 18 digits" in str(raised.value)


@pytest.mark.parametrize("name", ["SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_ID"])
def test_a_step_with_a_variable_missing_is_an_error(step, name):
    del step[name]
    with pytest.raises(WorldError, match=f"{name} is not set"):
        discover(step, "vm")


@pytest.mark.parametrize(
    "tasks", ["", "2(x)", "2(2)", "2(x2", "(x2)", "2,,2", "2(x²)", "2(x2)1", "9" * 5000, f"2(x{'9' * 5000})"]
)
def test_tasks_per_node_outside_slurms_notation_are_an_error(step, tasks):
    with pytest.raises(WorldError, match="SLURM_STEP_TASKS_PER_NODE="):
        discover({**step, "SLURM_STEP_TASKS_PER_NODE": tasks}, "vm")


def test_a_node_list_that_cannot_be_read_is_an_error_with_its_place(step):
    step["SLURM_STEP_NODELIST"] = "nid[001002-"
    with pytest.raises(WorldError, match=r"SLURM_STEP_NODELIST: .*unclosed bracket at character 4"):
        discover(step, "vm")


@pytest.mark.parametrize(
    ("kind", "entries", "masks"),
    [
        ("map_cpu:", "0,0", [{0}, {0}]),
        ("map_cpu:", "3", [{3}, {3}]),
        ("mask_cpu:", "3,0x1", [{0, 1}, {0}]),
        ("mask_cpu:", "0xF0", [{4, 5, 6, 7}] * 2),
        ("none", "", None),
        ("map_cpu:", "x", None),
    ],
)
def test_the_masks_of_the_tasks_of_a_node_are_slurms(step, kind, entries, masks):
    env = {**step, "SLURM_CPU_BIND_TYPE": kind, "SLURM_CPU_BIND_LIST": entries}
    assert discover(env, "vm").masks == masks
