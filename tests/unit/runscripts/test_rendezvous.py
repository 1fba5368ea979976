"""Where the ranks meet: the same place for all of a world, a place of its own for each world."""

import socket
from types import SimpleNamespace

import pytest
from pytorch_launch import LaunchError
from pytorch_launch.launchers.discovery import discover
from pytorch_launch.ports import LOWEST_PORT, SPAN, free_port, is_free
from pytorch_launch.rendezvous import STEPS, check_exported_address, choose_place, file_name, identify, step_number
from variables import MPIRUN, RANK_0, changed, variables

ONE_TASK = variables(
    "SLURM_NTASKS=1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_STEP_NODELIST=nid001003 "
    "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURMD_NODENAME=nid001003"
)


def started_by(number):
    """A process with this number, whose launcher has it too; None is for numbers that are not needed."""
    return SimpleNamespace(pid=number, launcher=number)


def place_of(env, world, node):
    return choose_place(env, world, node).variables()


def step_port(job, step):
    return LOWEST_PORT + step_number(job, step) % SPAN


@pytest.fixture
def mpirun():
    """The variables of rank 3 of a launch by mpirun."""
    return dict(MPIRUN)


def test_steps_of_neighbouring_jobs_never_share_a_port():
    """Exhaustive: what collides depends on job and step differences and on the remainder only.

    The port is a remainder of job * STEPS + step, so pairs (first job, second job) and
    (first job + 1, second job + 1) collide alike; every difference is tried from two jobs.
    """
    for first_job in (1, 12345678):
        owner = {}
        for job in range(first_job, first_job + 317):
            for step in range(STEPS):
                port = step_port(job, step)
                assert owner.setdefault(port, (job, step)) == (job, step)


def test_what_the_user_exported_takes_precedence(step):
    env = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"}
    assert place_of(env, discover(step, "vm"), started_by(1)) == env


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http", "1e4", " 80", "8" * 5000])
def test_an_exported_port_that_is_none_is_an_error(port):
    with pytest.raises(LaunchError, match=f"MASTER_PORT={port} "):
        place_of({"MASTER_PORT": port}, discover({}, "vm"), started_by(1))


@pytest.mark.parametrize("is_in_step", [False, True])
def test_a_world_of_one_takes_a_free_port_from_the_number_of_its_process_on(step, is_in_step):
    """A task may start several programs."""
    start = free_port(1234) - LOWEST_PORT
    env = {**step, **ONE_TASK} if is_in_step else {}
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", LOWEST_PORT + start))
        busy.listen()
        port = int(place_of({}, discover(env, "vm"), started_by(start))["MASTER_PORT"])
    assert port == free_port(start + 1) != LOWEST_PORT + start


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::"])  # noqa: S104  (listeners of the test alone)
def test_a_port_is_not_free_if_a_process_listens_at_any_address(host):
    """torch binds to all addresses, and other ranks may reach another program on any of them."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as stranger:
        stranger.bind((host, 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        assert not is_free(port)
    assert is_free(port)


def test_a_port_is_free_if_only_connections_that_have_ended_use_it():
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = server.getsockname()
        with socket.create_connection(address), server.accept()[0] as accepted:
            accepted.close()  # the server's side ends first and keeps the port in TIME_WAIT, tcp(7)
    assert is_free(address[1])


def test_a_launch_has_a_name_that_its_ranks_share(step, mpirun):
    assert identify(discover(step, "vm"), started_by(None))[0] == "7.0"
    assert identify(discover(mpirun, "nid001002"), started_by(None))[0].startswith("mpi")
    del mpirun["PMIX_NAMESPACE"]  # ranks on several nodes share no number
    world = discover(mpirun, "nid001002")
    assert identify(world, started_by(None))[0] is None
    with pytest.raises(LaunchError, match="MASTER_PORT"):
        place_of({}, world, started_by(1))
    mpirun.update(OMPI_COMM_WORLD_LOCAL_SIZE="4", OMPI_COMM_WORLD_LOCAL_RANK="3")  # on one node that of their launcher
    world = discover(mpirun, "laptop")
    assert identify(world, started_by(4711))[0] == "local.4711"
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(LOWEST_PORT + 4711)}
    assert place_of({}, world, started_by(4711)) == place


def test_rank_0_elsewhere_than_on_the_first_host_is_an_error(step):
    """`srun --distribution=arbitrary`: the host file starts with nid001003."""
    step.update(SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODEID="1")
    world = discover(step, "vm")
    with pytest.raises(LaunchError, match="rank 0 runs on nid001003.*nid001002"):
        place_of({}, world, started_by(1))
    assert place_of({"MASTER_ADDR": "nid001003"}, world, started_by(1))["MASTER_ADDR"] == "nid001003"


def test_several_hosts_of_which_the_first_is_not_known_are_an_error_and_never_localhost(mpirun):
    del mpirun["SLURM_JOB_NODELIST"]
    world = discover(mpirun, "b")
    with pytest.raises(LaunchError, match="Open MPI does not report the node of rank 0. Export MASTER_ADDR"):
        place_of({}, world, started_by(1))
    assert place_of({"MASTER_ADDR": "a"}, world, started_by(1))["MASTER_ADDR"] == "a"


# An exported MASTER_ADDR, compared as text


NO_HOSTS = ("tcp://nid001002:29500", "nid001002:29500", "nid[001002-001003]", "a,b", "[::1]", "a b", "file:///tmp/x")
NO_HOSTS += ('"nid001002"', "$(hostname)", "<node>", "user@nid001002", "nid001002\t")
LOOPBACK = ("localhost", "LocalHost", "127.0.0.1", "127.1.2.3", "::1", "localhost.", "0.0.0.0", "::ffff:127.0.0.1")  # noqa: S104
ANOTHER = "another node of this job than nid001002, where rank 0 runs. Unset MASTER_ADDR"
HOSTS = ("nid001002", "nid001002-hsn0", "nid001002.site.org", "10.0.0.1", "fd00::2", "master.site.org")


@pytest.mark.parametrize("address", NO_HOSTS)
def test_an_exported_address_that_is_no_host_is_an_error(step, address):
    for env in ({}, step):
        with pytest.raises(LaunchError, match="is not one host's name or address. Export it without") as raised:
            check_exported_address({**env, "MASTER_ADDR": address}, discover(env, "vm"))
        assert f"MASTER_ADDR={address}" in str(raised.value)


@pytest.mark.parametrize("address", [*LOOPBACK, "localhost6.localdomain6"])
def test_the_loopback_is_no_place_for_ranks_on_several_nodes(step, address):
    exported = {"MASTER_ADDR": address}
    with pytest.raises(LaunchError, match="the ranks are on several nodes. Unset MASTER_ADDR") as raised:
        check_exported_address({**step, **exported}, discover(step, "vm"))
    assert raised.value.rank == 3
    one = {**step, "SLURM_STEP_NODELIST": "nid001003", "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "4"}
    for env in ({}, one):
        assert check_exported_address({**env, **exported}, discover(env, "vm")) == []


@pytest.mark.parametrize(
    ("address", "warning"),
    [
        ("nid001001", ANOTHER),
        ("nid001003.site.org", ANOTHER),
        *((address, None) for address in HOSTS),
    ],
)
def test_another_node_of_the_job_is_a_warning_of_rank_0_and_every_other_name_is_taken(step, address, warning):
    step["MASTER_ADDR"] = address
    assert check_exported_address(step, discover(step, "vm")) == []
    step.update(RANK_0)
    found = [str(problem) for problem in check_exported_address(step, discover(step, "vm"))]
    assert found == ([f"MASTER_ADDR={address} is {warning}"] if warning else [])


def test_an_address_that_each_task_computes_for_its_own_node_is_an_error(step):
    """`export MASTER_ADDR=$(hostname)` in each task: those on the node of rank 0 have the right one."""
    tasks = {0: RANK_0, 1: changed(RANK_0, "SLURM_PROCID=1 SLURM_LOCALID=1"), 2: {}, 3: {}}
    tasks[2] = variables("SLURM_PROCID=2 SLURM_LOCALID=0")
    for rank, values in tasks.items():
        env = {**step, **values}
        env["MASTER_ADDR"] = f"{env['SLURMD_NODENAME']}.site.org"
        if rank == 2:  # which tells it for its node
            with pytest.raises(LaunchError, match="nid001003.site.org is this node, but rank 0 runs on nid001002"):
                check_exported_address(env, discover(env, "vm"))
        else:
            assert check_exported_address(env, discover(env, "vm")) == []


TORCHRUN = variables(
    "TORCHELASTIC_RUN_ID=none RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 MASTER_ADDR=vm "
    "MASTER_PORT=40001"
)


@pytest.mark.parametrize(
    ("environment", "changes", "name"),
    [
        ("step", "", "7.0"),
        ("step", "SLURM_RESTART_COUNT=2", "7.0-restart2"),
        ("torchrun", "", "vm.40001"),
        ("torchrun", "SLURM_JOB_ID=7 SLURMD_NODENAME=a/b", "a_b.40001"),
        ("mpirun", "MASTER_PORT=4000", "nid001001.4000"),
    ],
)
def test_files_of_a_launch_have_its_name(step, mpirun, environment, changes, name):
    env = {"step": step, "torchrun": TORCHRUN, "mpirun": mpirun}[environment]
    env = changed(env, changes)
    world = discover(env, "vm")
    assert file_name(world, choose_place(env, world, started_by(1))) == name
