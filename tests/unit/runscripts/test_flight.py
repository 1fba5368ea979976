"""PyTorch's flight recorder: where the launcher lets it write, and under which names."""

import os

import node_trees
import pytest
from pytorch_launch.caches import make_dumps, plan_dumps
from pytorch_launch.plan import make_plan
from pytorch_launch.topology import Node
from variables import variables

#: The smallest nodes with GPUs of each vendor, and one without.
NODES = {"nvidia": ["0000:01:00.0"], "amd": ["0000:c1:00.0"], None: []}


#: Makes rank 3 of the step the first of its node.
FIRST = {"SLURM_PROCID": "2", "SLURM_LOCALID": "0"}
#: What torchrun exports to a worker.
EXPORTED = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}
EXPORTED.update(MASTER_ADDR="nid001002", MASTER_PORT="40001")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """The root directories of nodes, by the vendor of their GPUs."""
    found = {}
    for vendor, gpus in NODES.items():
        directory = tmp_path_factory.mktemp(str(vendor))
        numbers = dict.fromkeys(gpus, 0)
        found[vendor] = str(node_trees.node(directory, cores=2, numa_nodes=1, vendor=vendor, gpus=numbers))
    return found


@pytest.fixture
def plan(step, nodes, tmp_path):
    """A function that plans rank 3 of a step on a node, with the recorder's settings."""

    def make(vendor="nvidia", **env):
        (tmp_path / "home").mkdir(exist_ok=True)
        env = {**step, "HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path), **env}
        node = Node(nodes[vendor], host="vm", launcher=1)
        return plan_dumps(make_plan(env, node))

    return make


def settings(plan):
    return {name: value for name, value in plan.changes.items() if name.startswith(("TORCH_FR", "TORCH_NCCL"))}


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_ranks_with_gpus_write_dumps_to_a_private_directory_by_job_and_step(plan, vendor, tmp_path):
    made, first = plan(vendor), plan(vendor, **FIRST)
    expected = variables("TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1")
    expected["TORCH_FR_DUMP_TEMP_FILE"] = f"{tmp_path}/home/.cache/pytorch-dumps/7.0-rank_"
    assert settings(made) == settings(first) == expected
    assert not (tmp_path / "home" / ".cache").exists()  # a plan writes nothing
    directory = tmp_path / "home/.cache/pytorch-dumps"
    for rank, is_made in ((made, False), (first, True), (made, True)):  # one rank of each node makes it
        assert settings(make_dumps(rank)) == settings(made)
        assert directory.exists() == is_made
    assert directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"SLURM_RESTART_COUNT": "2"}, "7.0-restart2"),
        # after a restart of torchrun, a rank that dies without a dump has none of the same name
        ({"TORCHELASTIC_RUN_ID": "../7.0 x", **EXPORTED}, "_7.0_x.40001"),
        ({"TORCHELASTIC_RUN_ID": "none", **EXPORTED, "MASTER_PORT": "40002"}, "7.nid001002.40002"),
    ],
)
def test_dumps_have_the_name_of_their_launch(plan, tmp_path, variables, name):
    settled = settings(plan(**variables))["TORCH_FR_DUMP_TEMP_FILE"]
    assert settled == f"{tmp_path}/home/.cache/pytorch-dumps/{name}-rank_"


def test_dumps_of_ranks_outside_a_job_have_the_names_of_node_and_launcher(nodes):
    node = Node(nodes["nvidia"], host="vm", pid=12, launcher=11)
    env = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    env.update(OMPI_COMM_WORLD_LOCAL_SIZE="2", HOME="/home/u", MASTER_ADDR="vm", MASTER_PORT="12000")
    made = plan_dumps(make_plan(env, node))
    assert made.changes["TORCH_FR_DUMP_TEMP_FILE"] == "/home/u/.cache/pytorch-dumps/local.vm.11-rank_"


OLD = {"TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT"}
NEW = {"TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT"}


@pytest.mark.parametrize(
    ("version", "names"), [("2.3.1", OLD), ("2.7.1", OLD), ("2.8.0", NEW), ("2.15.0", NEW), ("x", NEW)]
)
def test_the_names_are_those_of_the_modules_torch(plan, version, names):
    assert set(settings(plan(EBVERSIONPYTORCH=version))) == names


@pytest.mark.parametrize(
    ("exported", "name"),
    [
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"),
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"),
        ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT"),
    ],
)
def test_exported_settings_take_precedence_under_either_name(plan, exported, name):
    made = plan(**{exported: "0"})
    assert set(settings(made)) == NEW - {name}
    assert (made.dumps is None) == (exported.endswith("FILE"))


def test_the_file_of_a_launch_whose_rank_submitted_this_job_is_not_written(plan, tmp_path):
    inherited = f"{tmp_path}/home/.cache/pytorch-dumps/6.0-rank_"
    for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        made = settings(plan(**{name: inherited}))
        assert made["TORCH_FR_DUMP_TEMP_FILE"] == inherited.replace("6.0", "7.0")


def test_without_gpus_and_for_one_process_nothing_is_set(plan, tmp_path):
    one = variables("SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_STEP_NUM_NODES=1")
    alone = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_STEP_NODELIST": "nid001003"}
    for made in (plan(None), plan(**one, **alone)):
        assert (settings(made), made.dumps) == ({}, None)


def test_a_directory_that_others_can_read_or_that_cannot_be_made_is_not_used(plan, tmp_path):
    made = plan(XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert made.dumps == f"{tmp_path}/cache/pytorch-dumps"
    (tmp_path / "cache/pytorch-dumps").mkdir(parents=True, mode=0o755)
    assert set(settings(make_dumps(made))) == {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT"}
    # a home directory that cannot be written
    made = plan(HOME="/proc", **FIRST)
    assert set(settings(make_dumps(made))) == {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT"}
    assert "TORCH_FR_DUMP_TEMP_FILE" not in settings(plan(HOME=""))


@pytest.mark.parametrize(("error", "count"), [(28, 1), (122, 1), (30, 0)])
def test_a_full_home_directory_is_named_and_a_read_only_one_is_usual(plan, tmp_path, monkeypatch, error, count):
    def fill(*_, **__):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "makedirs", fill)
    made = make_dumps(plan(**FIRST))
    fault = f"cannot make {tmp_path}/home/.cache/pytorch-dumps for dumps of a collective that hangs: "
    assert sum(str(problem).startswith(fault + os.strerror(error)) for problem in made.warnings) == count
    assert "TORCH_FR_DUMP_TEMP_FILE" not in settings(made)
