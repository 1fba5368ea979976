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
    made = plan(vendor)
    expected = variables("TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1")
    expected["TORCH_FR_DUMP_TEMP_FILE"] = f"{tmp_path}/home/.cache/pytorch-dumps/7.0-rank_"
    assert settings(made) == expected
    assert not (tmp_path / "home" / ".cache").exists()  # a plan writes nothing
    directory = tmp_path / "home/.cache/pytorch-dumps"
    for _ in range(2):  # the first rank makes it
        assert settings(make_dumps(made)) == expected
    assert directory.stat().st_mode & 0o777 == 0o700


SIZE, FILE, ON_TIMEOUT = "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT"
OLD_SIZE, OLD_FILE = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
#: Variables, the names that are set, and the name of the file.
SETTINGS = [
    ({"SLURM_RESTART_COUNT": "2"}, (SIZE, FILE, ON_TIMEOUT), "7.0-restart2"),
    # after a restart of torchrun, a rank that dies without a dump has none of the same name
    ({"TORCHELASTIC_RUN_ID": "../7.0 x", **EXPORTED}, (SIZE, FILE, ON_TIMEOUT), "_7.0_x.40001"),
    ({"TORCHELASTIC_RUN_ID": "none", **EXPORTED}, (SIZE, FILE, ON_TIMEOUT), "7.nid001002.40001"),
    # the names of the module's torch
    *(({"EBVERSIONPYTORCH": version}, (OLD_SIZE, OLD_FILE, ON_TIMEOUT), "7.0") for version in ("2.3.1", "2.7.1")),
    *(({"EBVERSIONPYTORCH": version}, (SIZE, FILE, ON_TIMEOUT), "7.0") for version in ("2.8.0", "2.15.0", "x")),
    # what is exported takes precedence under either name
    ({OLD_SIZE: "0"}, (FILE, ON_TIMEOUT), "7.0"),
    ({ON_TIMEOUT: "0"}, (SIZE, FILE), "7.0"),
    *(({name: "/own"}, (SIZE, ON_TIMEOUT), None) for name in (OLD_FILE, FILE)),
    ({"HOME": ""}, (SIZE, ON_TIMEOUT), None),
    # but not the file of a launch whose rank submitted this job
    *(({name: "{dumps}/6.0-rank_"}, (SIZE, FILE, ON_TIMEOUT), "7.0") for name in (OLD_FILE, FILE)),
]


@pytest.mark.parametrize(("env", "names", "file"), SETTINGS)
def test_what_is_not_exported_is_set_and_dumps_have_the_name_of_their_launch(plan, tmp_path, env, names, file):
    dumps = f"{tmp_path}/home/.cache/pytorch-dumps"
    made = plan(**{name: value.format(dumps=dumps) for name, value in env.items()})
    assert set(settings(made)) == set(names)
    assert made.dumps == (dumps if file else None)
    assert not file or f"{dumps}/{file}-rank_" in settings(made).values()


def test_dumps_of_ranks_outside_a_job_have_the_names_of_node_and_launcher(nodes):
    node = Node(nodes["nvidia"], host="vm", pid=12, launcher=11)
    env = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    env.update(OMPI_COMM_WORLD_LOCAL_SIZE="2", HOME="/home/u", MASTER_ADDR="vm", MASTER_PORT="12000")
    made = plan_dumps(make_plan(env, node))
    assert made.changes[FILE] == "/home/u/.cache/pytorch-dumps/local.vm.11-rank_"


def test_without_gpus_and_for_one_process_nothing_is_set(plan, tmp_path):
    one = variables("SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_STEP_NUM_NODES=1")
    alone = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_STEP_NODELIST": "nid001003"}
    for made in (plan(None), plan(**one, **alone)):
        assert (settings(made), made.dumps) == ({}, None)


def test_a_directory_that_others_can_read_or_that_cannot_be_made_is_not_used(plan, tmp_path):
    made = plan(XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert made.dumps == f"{tmp_path}/cache/pytorch-dumps"
    (tmp_path / "cache/pytorch-dumps").mkdir(parents=True, mode=0o755)
    for unusable in (made, plan(HOME="/proc", **FIRST)):  # or a home directory that cannot be written
        assert set(settings(make_dumps(unusable))) == {SIZE, ON_TIMEOUT}


@pytest.mark.parametrize(("error", "count"), [(28, 1), (122, 1), (30, 0)])
def test_a_full_home_directory_is_named_and_a_read_only_one_is_usual(plan, tmp_path, monkeypatch, error, count):
    def fill(*_, **__):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr("posix.mkdir", fill)
    made = make_dumps(plan(**FIRST))
    fault = f"no dumps of a collective that hangs: {tmp_path}/home/.cache: {os.strerror(error)}"
    assert sum(str(problem).startswith(fault) for problem in made.warnings) == count
    assert FILE not in settings(made)
