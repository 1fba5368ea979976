"""Starts and stops the cluster of a testbed: munged, slurmctld, and one slurmd for each node."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from testbed.layout import NODES, TestbedError
from testbed.packages import find_command
from testbed.progress import run, step

DAEMONS = ("munged", "slurmctld", "slurmd", "slurmstepd")
#: Below the kernel's ephemeral ports, above those of the runscripts.
PORTS = range(30000, 32768)
#: Limits for what takes seconds, but longer on a busy machine.
START_SECONDS = 180
RESUME_SECONDS = 60
QUERY_SECONDS = 180
#: Sockets on the ports of clusters that this process started: they do not listen, and keep other processes away.
reserved = []


def start(layout):
    """Start the cluster unless it is up; return when all nodes respond."""
    if responding(layout) or resumed(layout):
        return
    stop(layout)
    with step(f"starting a Slurm cluster of {len(NODES)} nodes"):
        write_configuration(layout)
        start_munge(layout)
        run([find_command("slurmctld"), "-f", layout.slurm_conf])
        for name in NODES:
            start_node(layout, name)
        wait_until_ready(layout)


def resumed(layout):
    """Resume the nodes if the controller is up, so that jobs survive a bad node; return whether all respond."""
    if not running(layout, daemons=("slurmctld",)):
        return False
    query(layout, ["scontrol", "update", f"NodeName={','.join(NODES)}", "State=RESUME"])
    deadline = time.monotonic() + RESUME_SECONDS
    while not responding(layout) and time.monotonic() < deadline:
        time.sleep(0.2)
    return responding(layout)


def stop(layout):
    """Stop all daemons and jobs of the cluster, and delete its files."""
    if running(layout, daemons=("slurmctld",)):
        jobs = query(layout, ["squeue", "--noheader", "--format", "%A"]).split()
        query(layout, ["scancel", "--quiet", *jobs])
    for sign, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 60)):
        for pid in running(layout):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(pid, sign)
        deadline = time.monotonic() + seconds
        while running(layout) and time.monotonic() < deadline:
            time.sleep(0.05)
    survivors = running(layout)
    if survivors:
        raise TestbedError(f"Processes {survivors} of {layout.cluster} are still running. Kill them.")
    shutil.rmtree(layout.cluster, ignore_errors=True)


def status(layout):
    """Return "down", or one line with the partition and its nodes."""
    if not responding(layout):
        return "down"
    return query(layout, ["sinfo", "--noheader", "--format", "%P %D nodes %T: %N"]).strip()


def responding(layout):
    """Return whether every node responds to the controller."""
    if not layout.slurm_conf.exists() or not running(layout, daemons=("slurmctld",)):
        return False
    states = query(layout, ["sinfo", "--noheader", "--Node", "--format", "%T"]).split()
    return len(states) == len(NODES) and all(state in ("idle", "mixed", "allocated", "completing") for state in states)


def query(layout, command):
    """Return the output of a Slurm client command, empty if the controller does not respond."""
    environment = {**os.environ, "SLURM_CONF": str(layout.slurm_conf)}
    answer = subprocess.run(
        [find_command(command[0]), *command[1:]],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
        timeout=QUERY_SECONDS,
    )
    return answer.stdout


def write_configuration(layout):
    """Write slurm.conf and the nodes' hosts file; create the directories that they name."""
    of_nodes = [f"disks/{node}" for node in NODES] + [f"spool/{node}" for node in NODES]
    for name in ("etc", "log", "run", "state", "disk", "small-disk", *of_nodes):
        (layout.cluster / name).mkdir(parents=True, exist_ok=True)
    first = free_ports(layout.identity, 1 + len(NODES))
    hostname = socket.gethostname().split(".")[0]
    template = (Path(__file__).parent / "slurm.conf.in").read_text()
    layout.slurm_conf.write_text(
        template.format(
            hostname=hostname,
            user=os.geteuid(),
            cluster=layout.cluster,
            nodes=f"nid[{NODES[0][3:]}-{NODES[-1][3:]}]",
            slurmctld_port=first,
            slurmd_ports=f"[{first + 1}-{first + len(NODES)}]",
            first_job_id=1000 + layout.identity % 60000,
            epilog=Path(__file__).with_name("epilog"),
            cpus=max(2, os.cpu_count() or 1),
        )
    )
    own_names = "".join(f"127.0.0.1 {name}\n" for name in NODES)
    # as if there were a second network: nid001001i has an address of its own
    own_names += "".join(f"127.0.1.{number} {name}i\n" for number, name in enumerate(NODES, 1))
    machine = Path("/etc/hosts")
    (layout.cluster / "etc" / "hosts").write_text(
        (machine.read_text() if machine.exists() else "127.0.0.1 localhost\n") + own_names
    )


def free_ports(seed, count):
    """Return the first of `count` consecutive free ports, and reserve them; `seed` selects where the search starts."""
    starts = range(PORTS.start, PORTS.stop - count, count)
    for turn in range(len(starts)):
        first = starts[(seed + turn) % len(starts)]
        with contextlib.ExitStack() as sockets, contextlib.suppress(OSError):
            for port in range(first, first + count):
                each = sockets.enter_context(socket.socket())
                each.bind(("", port))
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # for Slurm beside it, socket(7)
            reserved.append(sockets.pop_all())
            return first
    raise TestbedError(f"There are no {count} consecutive free ports between {PORTS.start} and {PORTS.stop}.")


def start_munge(layout):
    """Start a munge daemon with its own key and socket."""
    key = layout.cluster / "etc" / "munge.key"
    runtime = layout.cluster / "run"
    logs = layout.logs
    key.touch(mode=0o600, exist_ok=False)
    key.write_bytes(os.urandom(128))
    # --force: munge rejects group-writable parent directories; this socket serves one temporary cluster
    run(
        [
            find_command("munged"),
            "--force",
            f"--key-file={key}",
            f"--socket={runtime}/munge.sock",
            f"--pid-file={runtime}/munged.pid",
            f"--log-file={logs}/munged.log",
            f"--seed-file={runtime}/munge.seed",
        ]
    )


def start_node(layout, name):
    """Start one slurmd with the node's name, in its own namespaces."""
    namespaces = ["unshare", "--mount", "--uts"]
    if os.geteuid() != 0:
        namespaces += ["--user", "--map-root-user"]
    run([*namespaces, "true"], advice="A node needs these namespaces, which this machine denies; ask an administrator.")
    node = Path(__file__).with_name("node")
    hosts = layout.cluster / "etc" / "hosts"
    command = [*namespaces, "--", node, name, hosts, find_command("slurmd"), layout.slurm_conf]
    command += [os.geteuid(), os.getegid(), sys.executable]
    environment = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
    with (layout.logs / f"{name}.out").open("wb") as output:
        subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd="/",
            start_new_session=True,
        )


def wait_until_ready(layout):
    """Wait until all nodes respond; raise TestbedError if they do not."""
    deadline = time.monotonic() + START_SECONDS
    while not responding(layout):
        if time.monotonic() > deadline:
            raise TestbedError(f"The Slurm cluster did not start in {START_SECONDS} s. Its logs are in {layout.logs}.")
        time.sleep(0.1)


def running(layout, daemons=None):
    """Return the process ids of these daemons of the cluster; by default of all, and of its jobs' processes."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
            environment = (entry / "environ").read_bytes().split(b"\0")
            if is_daemon(layout, arguments, environment, daemons or DAEMONS) or (
                not daemons and is_task(layout, environment)
            ):
                pids.append(int(entry.name))
    return pids


def is_daemon(layout, arguments, environment, names):
    """Return whether a process is one of these daemons of the cluster; some have its configuration as argument."""
    name = Path(os.fsdecode(arguments[0].split(b":")[0])).name.split("-")[0]
    directory = os.fsencode(layout.cluster) + b"/"
    is_own = any(argument.rpartition(b"=")[2].startswith(directory) for argument in arguments)
    return name in names and (is_own or uses(layout, environment))


def is_task(layout, environment):
    """Return whether a process belongs to a job of the cluster."""
    return uses(layout, environment) and any(variable.startswith(b"SLURMD_NODENAME=") for variable in environment)


def uses(layout, environment):
    """Return whether an environment has the configuration of the cluster."""
    return b"SLURM_CONF=" + os.fsencode(layout.slurm_conf) in environment
