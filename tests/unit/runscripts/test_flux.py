"""The worlds of Flux: from the file of Cray's PMI, from an exported address, and from the command `flux`."""

import pytest
from apinfo_files import apinfo_file
from programs import program
from pytorch_launch.launchers import discover
from pytorch_launch.launchers.mpi import read_layout
from pytorch_launch.rendezvous import choose_rendezvous
from pytorch_launch.topology import Node
from pytorch_launch.world import WorldError
from variables import variables

#: Rank 3 of four on two nodes, by flux-environment(7). PMI is Flux's own.
FLUX = variables(
    "FLUX_JOB_ID=ƒ4yBboYGo FLUX_JOB_SIZE=4 FLUX_JOB_NNODES=2 FLUX_TASK_RANK=3 FLUX_TASK_LOCAL_ID=1 "
    "FLUX_URI=local:///run/flux/local PMI_FD=20 PMI_RANK=3 PMI_SIZE=4"
)
#: What the plugin cray-pals adds (flux-shell-cray-pals(1)): neither the local rank nor the local size.
CRAY_PALS = {"PALS_RANKID": "3", "PALS_NODEID": "1", "PALS_APID": "8762756694016", "PMI_CONTROL_PORT": "11998,11999"}
RANK_3_OF_4 = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}


@pytest.fixture
def written(tmp_path):
    """A function that writes a file; its path."""

    def write(data):
        path = tmp_path / "libpals_apinfo"
        path.write_bytes(data)
        return str(path)

    return write


@pytest.fixture
def flux(tmp_path):
    """A function that makes a command `flux`, which prints a text and keeps its arguments; the environment with it."""

    def make(text, status=0):
        program(tmp_path / "bin" / "flux", f'echo "$@" >{tmp_path}/arguments\nprintf "{text}"\nexit {status}')
        return {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}

    return make


@pytest.mark.parametrize("version", [1, 5])
def test_a_task_on_a_cray_reads_its_world_from_the_file_of_crays_pmi(written, version, tmp_path):
    path = written(apinfo_file(version, [0, 0, 1, 1], ["tuolumne1001", "tuolumne1002"]))
    world = discover({**FLUX, **CRAY_PALS, "PALS_APINFO": path, "PATH": str(tmp_path / "absent")}, "tuolumne1002")
    assert world.variables() == RANK_3_OF_4
    assert (world.first_host, world.node, world.source) == ("tuolumne1001", "tuolumne1002", "Flux job ƒ4yBboYGo")


def test_ranks_that_take_turns_over_the_nodes_are_counted_so(written):
    path = written(apinfo_file(5, [1, 0, 1, 0, 1], ["a", "b"]))
    env = {**FLUX, "FLUX_JOB_SIZE": "5", "FLUX_TASK_RANK": "4", "FLUX_TASK_LOCAL_ID": "2", "PALS_APINFO": path}
    world = discover(env, "b")
    assert (world.first_host, world.node_rank, world.local_size) == ("b", 0, 3)
    first = discover({**env, "FLUX_TASK_RANK": "0", "FLUX_TASK_LOCAL_ID": "0"}, "b")
    assert choose_rendezvous({}, first, Node())[0]["MASTER_ADDR"] == "b"


def test_rank_0_may_be_on_any_node_that_flux_names(flux):
    env = {**FLUX, **flux("n1: 2-3\\nn2: 0-1\\n")}
    worlds = [discover({**env, "FLUX_TASK_RANK": rank}, "any") for rank in ("1", "3")]
    assert [(world.first_host, world.node_rank) for world in worlds] == [("n2", 0), ("n2", 1)]


@pytest.mark.parametrize("length", [0, 50, 130, 200, 240])
def test_a_file_that_is_cut_off_is_not_read(written, length):
    path = written(apinfo_file(5, [0, 0, 1, 1], ["a", "b"])[:length])
    assert read_layout(path, 3) is None


def test_a_file_of_another_launch_is_not_used(written, flux):
    path = written(apinfo_file(5, [0, 1], ["a", "b"]))
    env = {**FLUX, **flux("n1: 0-1\\nn2: 2-3\\n"), "PALS_APINFO": path, "FLUX_TASK_RANK": "1"}
    assert discover(env, "n1").first_host == "n1"


def test_without_that_file_flux_is_asked_once(flux, tmp_path):
    world = discover({**FLUX, **flux("n1: 0-1\\nn2: 2,3\\n")}, "n2")
    assert world.variables() == RANK_3_OF_4
    assert world.first_host == "n1"
    assert (tmp_path / "arguments").read_text() == "job taskmap --to=hosts ƒ4yBboYGo\n"


@pytest.mark.parametrize(
    ("rank", "local", "node"), [("2", "0", 1), ("3", "1", 1), ("0", "0", 0), ("1", "0", 1)]
)  # the last one if Flux distributes ranks in turn
def test_an_exported_address_saves_that_command(rank, local, node, tmp_path):
    task = {"FLUX_TASK_RANK": rank, "FLUX_TASK_LOCAL_ID": local}
    env = {**FLUX, **task, "MASTER_ADDR": "n1", "PATH": str(tmp_path / "absent")}
    world = discover(env, "n2")
    assert (world.first_host, world.local_size, world.node_rank) == ("n1", 2, node)


def test_on_one_node_no_address_is_needed():
    world = discover({**FLUX, "FLUX_JOB_NNODES": "1", "FLUX_TASK_LOCAL_ID": "3", "PATH": ""}, "n1")
    assert (world.first_host, world.local_size, world.node_rank) == ("127.0.0.1", 4, 0)


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [("", 1, "`flux job taskmap` failed"), ("n1: 0-1\\n", 0, "does not list 4 tasks"), ("x\\n", 0, "does not list")],
)
def test_an_answer_that_is_none_is_an_error_with_the_line_for_the_job_script(flux, text, status, message):
    with pytest.raises(WorldError, match=message) as raised:
        discover({**FLUX, **flux(text, status)}, "n2")
    assert 'export MASTER_ADDR=$(get-master "$(flux getattr hostlist)")' in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("FLUX_TASK_RANK=4", "FLUX_TASK_RANK=4 is outside 0 to 3"),
        ("FLUX_TASK_LOCAL_ID=2", "FLUX_TASK_LOCAL_ID=2 is outside 0 to 1"),
        ("RANK=0", "RANK=0 is exported, but FLUX_TASK_RANK=3"),
        ("LOCAL_WORLD_SIZE=4", "LOCAL_WORLD_SIZE=4 is exported, but Flux job"),
        ("MASTER_ADDR= PATH=/absent", "the nodes of Flux job ƒ4yBboYGo are not known"),  # in an image without flux
    ],
)
def test_variables_of_flux_that_contradict_each_other_or_do_not_tell_are_named(changes, message):
    with pytest.raises(WorldError, match=message):
        discover({**FLUX, "MASTER_ADDR": "n1", **variables(changes)}, "n2")


def test_an_address_that_is_exported_already_is_no_advice(tmp_path):
    """With another number of tasks on each node it does not tell the tasks of this node."""
    with pytest.raises(WorldError, match="failed. With 4 tasks on 3 nodes put `flux` on PATH"):
        discover({**FLUX, "FLUX_JOB_NNODES": "3", "MASTER_ADDR": "n1", "PATH": str(tmp_path)}, "n2")


def test_all_tasks_of_a_job_meet_at_one_port_and_another_job_at_another(written):
    path = written(apinfo_file(5, [0, 0, 1, 1], ["a", "b"]))
    places = []
    for job, rank, local in [("ƒ1", "0", "0"), ("ƒ1", "3", "1"), ("ƒ2", "3", "1")]:
        env = {**FLUX, "FLUX_JOB_ID": job, "FLUX_TASK_RANK": rank, "FLUX_TASK_LOCAL_ID": local, "PALS_APINFO": path}
        world = discover(env, "b")
        places.append(choose_rendezvous({}, world, Node())[:2])
    assert places[0] == places[1] != places[2]


def test_of_launchers_in_each_other_the_inner_one_has_the_rank():
    """mpirun in a task of Flux; `flux proxy slurm:<job> flux run ...`, typed into a shell that srun started."""
    mpi = variables("RANK=0 SIZE=1 LOCAL_RANK=0 LOCAL_SIZE=1")
    mpi = {f"OMPI_COMM_WORLD_{name}": value for name, value in mpi.items()}
    assert discover({**FLUX, **mpi}, "n1").source == "Open MPI"
    step = variables(
        "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1 "
        "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 MASTER_ADDR=n1"
    )
    assert discover({**FLUX, **step}, "n2").variables() == RANK_3_OF_4


@pytest.mark.parametrize(("text", "nodes"), [("2\\n", 2), ("1\\n", 1), ("", 1)])
def test_the_nodes_of_an_allocation_of_flux_are_counted(flux, text, nodes):
    """In the shell of `flux alloc`, which has none of the variables of a task."""
    assert discover({**flux(text), "FLUX_URI": "local:///run/flux/local"}, "n1").allocation == (1, nodes, "flux run")
