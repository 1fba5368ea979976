# SPDX-License-Identifier: BSD-3-Clause
"""Chooses the address and port at which the ranks of a world meet, identically on every rank, without communication."""

from pytorch_launch import LaunchError, Problem, Record, is_number
from pytorch_launch.launchers.variables import is_node_of_job
from pytorch_launch.nodelist import NAME_CHARACTERS
from pytorch_launch.ports import LOWEST_PORT, SPAN, free_port

#: Steps of a job that have ports of their own.
STEPS = 61

# What names and addresses are made of, `%` before the interface of an address of IPv6.
ADDRESS_CHARACTERS = NAME_CHARACTERS + ":%"

# Names and addresses of a node for itself up to the first dot (hosts(5)), such as 127.0.0.1 and localhost.localdomain.
LOOPBACKS = (
    "localhost",
    "localhost4",
    "localhost6",
    "ip6-localhost",
    "ip6-loopback",
    "127",
    "0",
    "::1",
    "::",
    "::ffff:127",
)


class Identity(Record):
    """Identifies a launch: its name, and the number of its port. Both are None if the ranks share neither."""

    fields = "name number"


class Place(Record):
    """Where the ranks of a world meet.

    `address`, `port`  of rank 0, as text
    `launch`           the name of the launch, None if its ranks share none, or torchrun has exported the world
    """

    fields = "address port launch"

    def variables(self):
        """What each rank gets."""
        return {"MASTER_ADDR": self.address, "MASTER_PORT": self.port}


def choose_place(env, world, node):
    """The Place of a world, the same on each of its ranks; `node` is a Node. Raises LaunchError.

    Exported values take precedence.
    """
    if world.exported:
        return Place(env.get("MASTER_ADDR"), env.get("MASTER_PORT"), launch=None)
    identity = identify(world, node)
    port = env.get("MASTER_PORT") or str(_port(world, node, identity))
    if not (is_number(port) and 1 <= int(port) <= 65535):
        raise LaunchError(f"MASTER_PORT={port} is not a port", "export a port from 1 to 65535", rank=world.rank)
    return Place(env.get("MASTER_ADDR") or _address(world), port, identity.name)


def check_exported_address(env, world):
    """A list of Problems: what is unlikely about an exported MASTER_ADDR; names are compared as text, never looked up.

    Other names and addresses are taken, as sites have aliases. Raises LaunchError for what cannot work.
    """
    address = env.get("MASTER_ADDR")
    if not address or world.exported:
        return []
    _check_form(address, world)
    is_here = _short(address) == _short(world.node)
    # `export MASTER_ADDR=$(hostname)` in each task. The first rank of a node is not on that of rank 0, which has this
    # name there, and reports nothing.
    if is_here and world.rank > world.local_rank == 0 and world.first_host not in (None, world.node):
        fault = f"MASTER_ADDR={address} is this node, but rank 0 runs on {world.first_host}"
        raise LaunchError(fault, "unset MASTER_ADDR, or export the same one for all ranks")
    if world.rank != 0 or is_here or not is_node_of_job(env, address):
        return []
    fault = f"MASTER_ADDR={address} is another node of this job than {world.node}, where rank 0 runs"
    return [Problem(fault, "unset MASTER_ADDR")]


def _short(host):
    """A name up to its first dot."""
    return host.partition(".")[0]


def _check_form(address, world):
    """Raise LaunchError for a MASTER_ADDR that is no host, or that each node takes for itself."""
    if set(address) - set(ADDRESS_CHARACTERS) or address.count(":") == 1:
        remedy = "export it without protocol, port, brackets and quotes"
        raise LaunchError(f"MASTER_ADDR={address} is not one host's name or address", remedy, rank=world.rank)
    if world.spans_nodes and _short(address).lower() in LOOPBACKS:
        fault = f"MASTER_ADDR={address} is on each node another host, and the ranks are on several nodes"
        raise LaunchError(fault, "unset MASTER_ADDR, or export what all nodes can reach", rank=world.rank)


def identify(world, node):
    """The Identity of this launch, the same on each of its ranks, without communication.

    Launches of one cluster's Slurm, of one MPI launcher, or on one node have different names, which are short, without
    spaces and slashes. An MPI launcher may pass the number of the job to its ranks on the first node only (daemons that
    ssh started), so the number is not part of its name.
    """
    if world.step is not None:
        return Identity(f"{world.job}.{world.step}", step_number(world.job, world.step))
    if world.launch is not None:
        return Identity(f"mpi{world.launch}", world.launch)
    number = None
    if world.size == 1:
        number = node.pid
    elif not world.spans_nodes:
        number = node.launcher  # the mpirun that started all of them
    if number is None:
        return Identity(None, None)
    return Identity(f"local.{number}", number)


def step_number(job, step):
    """The number of step `step` of job `job`, whose remainder by SPAN is that of its port.

    Two steps less than STEPS apart, of two jobs at most 316 apart, never share a port: their sums
    differ, and by at most 316 * 61 + 60 = 19336 < SPAN, so the remainders differ too. Array tasks
    and the components of a heterogeneous job have job numbers of their own. Slurm's special steps
    (4294967290 and up) are numbers like the others.

    Steps further apart may share one: of 16 consecutive jobs on one node, each at a step below 200 drawn
    at random, two do in 8 % of draws. `claim` detects that on the node.
    """
    return job * STEPS + step


def file_name(world, place):
    """A name for files of this launch, of letters that every file system has.

    Slurm's job and step; else host and port, which is another one after each restart of torchrun's workers. A job that
    Slurm requeues keeps its number, and counts its restarts (sbatch(1), "OUTPUT ENVIRONMENT VARIABLES").
    """
    name = f"{world.job}.{world.step}"
    if world.step is None:
        host = place.address if world.spans_nodes else world.node
        name = f"{host}.{place.port}"
    if world.restarts:
        name = f"{name}-restart{world.restarts}"
    letters = [letter if letter in NAME_CHARACTERS else "_" for letter in name]
    return "".join(letters).lstrip(".")[:200]


def _address(world):
    if world.first_host is None:
        fault = f"{world.source} does not report the node of rank 0"
        raise LaunchError(fault, _on_all_ranks(world, "MASTER_ADDR=<its host>"), rank=world.rank)
    # `srun --distribution=arbitrary` and host files put rank 0 on any node, while the node list stays sorted;
    # the other ranks would try to connect to the wrong host for half an hour.
    if world.rank == 0 and world.node_rank != 0:
        fault = f"rank 0 runs on {world.node}, but the first host of {world.source} is {world.first_host}"
        remedy = _on_all_ranks(world, f"MASTER_ADDR={world.node}") + ", or let rank 0 run on the first host"
        raise LaunchError(fault, remedy, rank=world.rank)
    return world.first_host


def _port(world, node, identity):
    if world.size == 1:  # a task may start several programs
        return free_port(node.pid)
    if identity.number is not None:
        return LOWEST_PORT + identity.number % SPAN
    fault = f"{world.source} passes no number to its ranks for a port"
    remedy = "export MASTER_PORT before the launch; in a container, omit --pid and --containall"
    if world.spans_nodes:
        remedy = _on_all_ranks(world, "a MASTER_PORT")
    raise LaunchError(fault, remedy, rank=world.rank)


def _on_all_ranks(world, variable):
    return f"export {variable} {world.launcher.to_all_ranks}"
