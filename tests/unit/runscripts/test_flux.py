"""The worlds of Flux: from an exported address, and from the command `flux`."""

import pytest
from programs import program
from pytorch_launch import LaunchError
from pytorch_launch.launchers.discovery import discover
from pytorch_launch.rendezvous import choose_place
from tables import name, table
from variables import changed, variables

#: Rank 3 of four on two nodes, by flux-environment(7). PMI is Flux's own.
FLUX = variables(
    "FLUX_JOB_ID=ƒ4yBboYGo FLUX_JOB_SIZE=4 FLUX_JOB_NNODES=2 FLUX_TASK_RANK=3 FLUX_TASK_LOCAL_ID=1 "
    "FLUX_URI=local:///run/flux/local PMI_FD=20 PMI_RANK=3 PMI_SIZE=4"
)
RANK_3_OF_4 = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}


def flux(directory, text, status=0):
    """Make a command `flux`, which prints a text and keeps its arguments; returns the environment with it."""
    program(directory / "bin" / "flux", f'echo "$@" >{directory}/arguments\nprintf "{text}"\nexit {status}')
    return {"PATH": f"{directory}/bin:/usr/bin:/bin"}


TASK = "FLUX_TASK_RANK={} FLUX_TASK_LOCAL_ID={}".format
#: What the command `flux` prints: ranks in order, in the reverse order of the nodes, and in turn over the nodes.
ANSWERS = {
    "order": "n1: 0-1\\nn2: 2,3\\n",
    "reverse": "n1: 2-3\\nn2: 0-1\\n",
    "turn": "a: [1,3]\\nb: [0,2]\\n",
    "three": "a: [0,3]\\nb: [1,4]\\nc: [2,5]\\n",
}
#: Rank and local rank, other variables, the answer of `flux`; then rank, size, local rank and size, node rank, and the
#: host of rank 0.
WORLDS = """
rank | variables         | flux    | world
3 1  |                   | order   | 3/4 1/2 1 n1
1 1  |                   | order   | 1/4 1/2 0 n1
1 1  |                   | reverse | 1/4 1/2 0 n2
3 1  |                   | reverse | 3/4 1/2 1 n2
3 1  |                   | turn    | 3/4 1/2 1 b
2 1  |                   | turn    | 2/4 1/2 0 b
2 0  | FLUX_JOB_SIZE=6 FLUX_JOB_NNODES=3 | three | 2/6 0/2 2 a
# an exported address saves that command; the last one if Flux distributes ranks in turn
2 0  | MASTER_ADDR=n1    |         | 2/4 0/2 1 n1
3 1  | MASTER_ADDR=n1    |         | 3/4 1/2 1 n1
0 0  | MASTER_ADDR=n1    |         | 0/4 0/2 0 n1
1 0  | MASTER_ADDR=n1    |         | 1/4 0/2 1 n1
# on one node no address is needed
3 3  | FLUX_JOB_NNODES=1 |         | 3/4 3/4 0 127.0.0.1
"""


@pytest.mark.parametrize("row", table(WORLDS), ids=name)
def test_a_task_is_a_rank_of_its_jobs_world(tmp_path, row):
    changes = variables(f"{TASK(*row['rank'].split())} {row['variables']}")
    env = {**FLUX, "PATH": str(tmp_path / "absent"), **changes}
    answer = ANSWERS.get(row["flux"])
    if answer:
        env.update(flux(tmp_path, answer))
    world = discover(env, "n2")
    numbers = f"{world.rank}/{world.size} {world.local_rank}/{world.local_size} {world.node_rank}"
    assert (f"{numbers} {world.first_host}", world.source) == (row["world"], "Flux job ƒ4yBboYGo")
    if answer:
        assert (tmp_path / "arguments").read_text() == "job taskmap --to=hosts ƒ4yBboYGo\n"  # once


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [("", 1, "`flux job taskmap` failed"), ("n1: 1-2\\n", 0, "are not known")],
)
def test_an_answer_that_is_none_is_an_error_with_the_line_for_the_job_script(tmp_path, text, status, message):
    with pytest.raises(LaunchError, match=message) as raised:
        discover(changed(FLUX, **flux(tmp_path, text, status)), "n2")
    assert 'export MASTER_ADDR=$(get-master "$(flux getattr hostlist)")' in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("FLUX_TASK_RANK=4", "FLUX_TASK_RANK=4 and FLUX_TASK_LOCAL_ID=1 do not tell the node"),
        ("FLUX_TASK_LOCAL_ID=2", "FLUX_TASK_LOCAL_ID=2 do not tell the node. Start as many on each"),
        ("FLUX_JOB_NNODES=0", "has 4 tasks on 0 nodes"),
        # such as --taskmap=cyclic:2
        (
            "FLUX_JOB_SIZE=8 FLUX_TASK_RANK=2 FLUX_TASK_LOCAL_ID=0",
            "FLUX_TASK_RANK=2 and FLUX_TASK_LOCAL_ID=0 do not tell the node",
        ),
        ("RANK=0", "RANK=0 is exported, but FLUX_TASK_RANK=3"),
        ("LOCAL_WORLD_SIZE=4", "LOCAL_WORLD_SIZE=4 is exported, but Flux job"),
        ("MASTER_ADDR= PATH=/absent", "the nodes of Flux job ƒ4yBboYGo are not known"),  # in an image without flux
        ("FLUX_JOB_NNODES=3", "has 4 tasks on 3 nodes. Start as many on each node: --tasks-per-node"),
    ],
)
def test_variables_of_flux_that_contradict_each_other_or_do_not_tell_are_named(changes, message):
    with pytest.raises(LaunchError, match=message):
        discover(changed(FLUX, f"MASTER_ADDR=n1 {changes}"), "n2")


def test_all_tasks_of_a_job_meet_at_one_port_and_another_job_at_another(tmp_path):
    places = []
    for job, rank, local in [("ƒ1", "0", "0"), ("ƒ1", "3", "1"), ("ƒ2", "3", "1")]:
        env = changed(FLUX, TASK(rank, local), FLUX_JOB_ID=job, **flux(tmp_path, ANSWERS["order"]))
        places.append(choose_place({}, discover(env, "n1"), None))
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
def test_the_nodes_of_an_allocation_of_flux_are_counted(tmp_path, text, nodes):
    """In the shell of `flux alloc`, which has none of the variables of a task."""
    env = changed(flux(tmp_path, text), FLUX_URI="local:///run/flux/local")
    assert discover(env, "n1").allocation == (1, nodes, "flux run")
