"""The worlds of mpirun, mpiexec and aprun, by the variables that each sets."""

import pytest
from apinfo_files import apinfo_file
from pytorch_launch.launchers import MORE_CORES, ONE_PER_NODE, discover, launcher_option
from pytorch_launch.world import WorldError
from variables import variables

#: Rank 3 of four on two nodes, as seen with Open MPI 4.1.4 (Debian 12, in job 7 of a testbed). The remote
#: daemon is a step of its own, and its ranks inherit that step.
OPEN_MPI = variables(
    "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
    "OMPI_COMM_WORLD_NODE_RANK=1 PMIX_NAMESPACE=1997275137 SLURM_JOB_ID=7 SLURM_JOB_NODELIST=nid[001001-001002] "
    "SLURMD_NODENAME=nid001002 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=nid001002 SLURM_STEP_NUM_TASKS=1 "
    "SLURM_STEP_TASKS_PER_NODE=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_CPUS_ON_NODE=8"
)
#: The same with MPICH 4.0.2's mpiexec.hydra; the node's name is that of the first node.
HYDRA = variables(
    "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 SLURM_JOB_ID=7 SLURM_JOB_NODELIST=nid[001001-001002] "
    "SLURMD_NODENAME=nid001001 SLURM_STEP_ID=1 SLURM_STEP_NODELIST=nid[001001-001002] SLURM_STEP_NUM_TASKS=2 "
    "SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NODEID=1"
)
#: PALS with Cray's PMI, in a job of PBS; by its documentation.
PALS = variables(
    "PALS_RANKID=3 PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=2 PALS_NODEID=1 PALS_APID=6cd8dc5d-3d5a-4b5e-9d6c-0d1d1b2f1f7a "
    "PMI_RANK=3 PMI_SIZE=4 PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=2 PBS_JOBID=7.pbs"
)
PMI = {name: value for name, value in PALS.items() if not name.startswith("PALS")}

RANK_3_OF_4 = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}


@pytest.fixture
def nodefile(tmp_path):
    """PBS's list of hosts, one line for each slot."""
    file = tmp_path / "nodefile"
    file.write_text("nid001001\nnid001001\nnid001002\nnid001002\n")
    return str(file)


@pytest.mark.parametrize(("env", "source"), [(OPEN_MPI, "Open MPI"), (HYDRA, "MPICH")])
def test_a_rank_of_mpirun_in_a_slurm_job_knows_its_world(env, source):
    world = discover(env, "nid001002")
    assert world.variables() == RANK_3_OF_4
    assert (world.first_host, world.node, world.job, world.source) == ("nid001001", "nid001002", 7, source)
    assert world.step is None


@pytest.mark.parametrize(("env", "source"), [(PALS, "PALS"), (PMI, "PMI")])
def test_a_rank_in_a_pbs_job_knows_its_world(env, source, nodefile):
    world = discover({**env, "PBS_NODEFILE": nodefile}, "nid001002.site.org")
    assert world.variables() == RANK_3_OF_4
    assert (world.first_host, world.source) == ("nid001001", source)


def test_pals_names_the_node_of_rank_0_where_the_nodes_do_not_have_the_jobs_list(tmp_path):
    """As with `mpiexec --hosts`, and on all nodes but the first where PBS writes its file there only."""
    (tmp_path / "apinfo").write_bytes(apinfo_file(5, [0, 0, 1, 1], ["x4407c6s2b0n0", "x4407c6s7b0n0"]))
    env = {**PALS, "PALS_APINFO": str(tmp_path / "apinfo"), "PBS_NODEFILE": str(tmp_path / "absent")}
    for rank, local, node in ((0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1)):
        own = {"PALS_RANKID": f"{rank}", "PALS_LOCAL_RANKID": f"{local}", "PALS_NODEID": f"{node}"}
        without_pmi = {name: value for name, value in {**env, **own}.items() if not name.startswith("PMI")}
        world = discover(without_pmi, "any-name")
        assert world.first_host == "x4407c6s2b0n0"
        numbers = (rank, 4, local, 2, node)
        assert (world.rank, world.size, world.local_rank, world.local_size, world.node_rank) == numbers


@pytest.mark.parametrize(
    ("sign", "unbound", "per_node"),
    [
        ("OMPI_COMM_WORLD_RANK", "mpirun with --bind-to none", "mpirun --map-by ppr:1:node --bind-to none"),
        ("MPI_LOCALRANKID", "mpirun with -bind-to none", "mpirun -ppn 1 -bind-to none"),
        ("PALS_RANKID", "mpiexec with --cpu-bind none", "mpiexec --ppn 1 --cpu-bind none"),
        ("SLURM_STEP_ID", "srun -c <cores>, or all of the job's with --cpu-bind=none", "srun -N2 -n2"),
    ],
)
def test_hints_are_in_the_words_of_the_launcher(sign, unbound, per_node):
    """mpirun's ranks in a job have the step of their daemon, torchrun's workers the variables of their agent."""
    env = {sign: "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "TORCHELASTIC_RUN_ID": "7.0"}
    assert unbound in launcher_option(env, MORE_CORES)
    assert launcher_option(env, ONE_PER_NODE) == per_node


def test_without_a_launcher_no_hint_is_about_one():
    assert "srun" not in "".join(launcher_option({}, which) for which in (MORE_CORES, ONE_PER_NODE))


def test_srun_with_pmi_is_still_srun(step):
    step.update(PMI_RANK="3", PMI_SIZE="4", PMI_LOCAL_RANK="1", PMI_LOCAL_SIZE="2")
    assert discover(step, "vm").source == "Slurm step 7.0"


def test_a_host_outside_the_allocations_names_is_counted_by_blocks_of_ranks():
    assert discover(OPEN_MPI, "another-name").node_rank == 1


@pytest.mark.parametrize("env", [OPEN_MPI, HYDRA])
def test_ranks_of_one_node_need_no_name_of_it(env):
    names = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
    world = discover({**env, **dict.fromkeys(names, "4")}, "laptop")
    assert (world.first_host, world.local_size, world.node_rank) == ("127.0.0.1", 4, 0)


def test_all_ranks_of_a_launch_share_its_number_and_another_launch_has_another():
    numbers = [
        discover({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": rank, "PMIX_NAMESPACE": namespace}, "nid001002").launch
        for rank, namespace in [("2", "1997275137"), ("3", "1997275137"), ("3", "1997275138")]
    ]
    assert numbers[0] == numbers[1] != numbers[2]


@pytest.mark.parametrize(
    ("env", "rank_0"),
    [
        (HYDRA, {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "PMI_RANK": "0", "MPI_LOCALRANKID": "0"}),
        (PALS, {"PBS_JOBID": "", "PALS_RANKID": "0", "PALS_LOCAL_RANKID": "0", "PALS_NODEID": "0"}),
    ],
)
def test_a_rank_on_another_node_has_the_same_number(env, rank_0):
    assert discover({**env, **rank_0}, "nid001001").launch == discover(env, "nid001002").launch is not None


def test_without_a_job_mpich_gives_its_ranks_no_number():
    assert discover({name: value for name, value in HYDRA.items() if "SLURM" not in name}, "a").launch is None


def test_without_crays_pmi_the_size_of_the_world_must_be_exported(nodefile):
    env = {name: value for name, value in PALS.items() if not name.startswith("PMI")}
    env["PBS_NODEFILE"] = nodefile
    with pytest.raises(WorldError, match="PALS_RANKID is set, but PMI_SIZE.*WORLD_SIZE"):
        discover(env, "nid001002")
    assert discover({**env, "WORLD_SIZE": "4"}, "nid001002").variables() == RANK_3_OF_4


@pytest.mark.parametrize(
    ("env", "changes", "first", "second"),
    [
        (OPEN_MPI, {"OMPI_COMM_WORLD_RANK": "4"}, "OMPI_COMM_WORLD_RANK=4", "OMPI_COMM_WORLD_SIZE=4"),
        (OPEN_MPI, {"OMPI_COMM_WORLD_LOCAL_RANK": "2"}, "LOCAL_RANK=2", "LOCAL_SIZE=2"),
        (OPEN_MPI, {"OMPI_COMM_WORLD_LOCAL_SIZE": "5"}, "LOCAL_SIZE=5", "WORLD_SIZE=4"),
        (OPEN_MPI, {"WORLD_SIZE": "8"}, "WORLD_SIZE=8", "OMPI_COMM_WORLD_SIZE=4"),
        (OPEN_MPI, {"GROUP_RANK": "0"}, "GROUP_RANK=0", "Open MPI"),
        (HYDRA, {"PMI_RANK": "9"}, "PMI_RANK=9", "PMI_SIZE=4"),
        (HYDRA, {"RANK": "1"}, "RANK=1", "PMI_RANK=3"),
        (PALS, {"PALS_LOCAL_RANKID": "2"}, "PALS_LOCAL_RANKID=2", "PALS_LOCAL_SIZE=2"),
    ],
)
def test_variables_that_contradict_each_other_are_named(env, changes, first, second):
    with pytest.raises(WorldError) as raised:
        discover({**env, **changes}, "nid001002")
    assert first in str(raised.value)
    assert second in str(raised.value)


def test_a_list_of_hosts_in_a_file_that_is_elsewhere_is_not_known(tmp_path):
    assert discover({**PALS, "PBS_NODEFILE": str(tmp_path / "absent")}, "nid001002").first_host is None


def test_short_and_long_names_of_a_host_are_the_same_host(tmp_path):
    (tmp_path / "nodefile").write_text("other.site.org\nnid001002.site.org\n")
    env = {**OPEN_MPI, "SLURM_JOB_NODELIST": "", "PBS_NODEFILE": str(tmp_path / "nodefile")}
    assert discover({**env, "OMPI_COMM_WORLD_RANK": "0"}, "nid001002").node_rank == 1


def test_mpirun_with_fewer_ranks_than_the_step_has_tasks_was_started_outside_of_it(step):
    step.update(OPEN_MPI, SLURM_STEP_NUM_TASKS="8", SLURM_STEP_NUM_NODES="2")
    with pytest.raises(WorldError, match=r"WORLD_SIZE=4, but SLURM_STEP_NUM_TASKS=8\. Unset .*OMPI_COMM_WORLD_RANK"):
        discover(step, "nid001002")


def test_mpirun_may_leave_nodes_of_its_daemons_without_a_rank():
    """As seen with `salloc -N3 mpirun -np 2`: the daemons are a step of three tasks."""
    daemons = {"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NUM_NODES": "3", "SLURM_STEP_TASKS_PER_NODE": "1(x3)"}
    env = {**OPEN_MPI, **daemons, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    assert discover(env, "nid001002").size == 2


def test_a_list_of_hosts_that_cannot_be_parsed_is_an_error():
    with pytest.raises(WorldError, match="SLURM_JOB_NODELIST: .*unclosed bracket"):
        discover({**OPEN_MPI, "SLURM_JOB_NODELIST": "nid[001001-"}, "nid001002")


# Launchers that are not known


@pytest.mark.parametrize(
    "variables",
    [
        {"PMI_RANK": "1", "PMI_SIZE": "2"},
        {"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": "5"},
        {"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_LOCAL_RANK": "1"},
        {"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "2", "JSM_NAMESPACE_LOCAL_RANK": "1"},
        {"PMIX_RANK": "1", "PMIX_NAMESPACE": "prterun-n1-7@1"},
        {"ALPS_APP_PE": "1"},
        {"PALS_LOCAL_RANKID": "1", "PALS_NODEID": "0"},
        {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
        {"MPI_LOCALNRANKS": "2"},
        {"FLUX_TASK_LOCAL_ID": "1"},
        {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"},
        {"MPI_RANKID": "1", "MPI_NRANKS": "2"},
        {"PBS_NODENUM": "1", "PBS_JOBID": "7.pbs"},
        {"PBS_NODENUM": "0", "PBS_TASKNUM": "2", "PBS_JOBID": "7.pbs"},
    ],
)
def test_ranks_of_a_launcher_that_is_not_known_are_an_error_and_never_worlds_of_one(variables, batch_script):
    for env in (variables, {**batch_script, **variables}):
        with pytest.raises(WorldError, match="ranks of a launcher that is not known. Start them with srun") as raised:
            discover(env, "nid001001")
        numbers = [f"{name}={value}" for name, value in variables.items() if name.endswith(("RANK", "RANKS", "RANKID"))]
        assert all(number in str(raised.value) for number in numbers)


@pytest.mark.parametrize("size", ["PMI_SIZE", "JSM_NAMESPACE_SIZE", "MV2_COMM_WORLD_SIZE"])
def test_the_only_rank_of_a_launcher_that_is_not_known_is_a_world_of_one(size):
    rank = size.replace("SIZE", "RANK")
    assert discover({rank: "0", size: "1"}, "laptop").size == 1


def test_settings_of_mpi_are_no_ranks():
    settings = variables(
        "PMI_NO_PREINITIALIZE=1 PMI_MMAP_SYNC_WAIT_TIME=3600 PMIX_MCA_gds=hash OMPI_MCA_btl=self MV2_USE_CUDA=1 "
        "HOROVOD_FUSION_THRESHOLD=0 PBS_NODENUM=0 PBS_TASKNUM=1 PALS_STARTUP_SIZE=none"
    )
    assert discover(settings, "laptop").size == 1


@pytest.mark.parametrize("hosts", ["a\na\nb\n", "a\n"])
def test_the_nodes_of_a_job_of_pbs_are_counted(tmp_path, hosts):
    (tmp_path / "nodefile").write_text(hosts)
    env = {"PBS_JOBID": "7.pbs", "PBS_NODEFILE": str(tmp_path / "nodefile")}
    assert discover(env, "a").allocation == (1, len(set(hosts.split())), "mpiexec")


def test_the_nodes_of_a_job_of_lsf_are_counted():
    assert discover({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "a 4 b 4 c 4"}, "a").allocation == (1, 3, "mpirun")
    assert discover({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "a 4"}, "a").allocation == (1, 1, "mpirun")
