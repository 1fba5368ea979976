# SPDX-License-Identifier: BSD-3-Clause
"""Usage: source <(pytorch-stage [FILE...])

Copies the image or the packed venv of the loaded module to each node of the job, which is one of Slurm or Flux, sets
the variables that name it (SIF and SIFPYTORCH, or PYTORCH_PACKED), and removes the copies when the job ends. If a copy
fails, nothing is set, and the status is 1.

  FILE  copy these files instead, and set PYTORCH_STAGED to the directory of the copies

  PYTORCH_LAUNCH_STAGE_DIR  the directory on the nodes; by default TMPDIR or /tmp, if it is on a disk
"""

import json
import os
import secrets
import select
import subprocess
import sys
import time
from collections import namedtuple

import pytorch_command
from pytorch_command import print_message, write_output
from pytorch_launch import LaunchError
from pytorch_launch.launchers.allocation import outside_of_jobs, slurm_allocation
from pytorch_launch.private import unsuitable
from pytorch_launch.report import statements

PROGRAM = "pytorch-stage"
CHOSEN = "PYTORCH_LAUNCH_STAGE_DIR"
OTHERWISE = f"set {CHOSEN} to a directory on a disk of each node with enough room, or use the shared file"
#: The directory of the copies. Other users can read arguments, and create a directory of that name first.
NAME = "PYTORCH_STAGE_DIRECTORY"
#: File systems on a disk of the node, as stat(1) names them. An overlay can be in memory.
ON_DISK = ("btrfs", "ext2/ext3", "f2fs", "xfs", "zfs")
SRUN = """srun --overlap --ntasks-per-node=1 --cpu-bind=none --mpi=none --gres=none --export=ALL --quiet
    --no-kill --kill-on-bad-exit=1 --wait=0 --job-name=pytorch-stage --immediate=120"""
SELF = [sys.executable, "-I", "-S", os.path.abspath(pytorch_command.__file__), PROGRAM]
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "bufsize": 0}
#: Printed by each node; the second with what is wrong.
READY = "pytorch-stage=ready"
FAULT = "pytorch-stage=fault "
#: For all nodes to answer: srun gives up to start them after 120 s.
NODES_SECONDS = 130
#: Stays on a node, and removes the copies when the job ends: Slurm and Flux then send SIGTERM. A trap in the job script
#: cannot start a step any more after `scancel` and the time limit.
STAY = f"""\
trap exit HUP INT TERM
trap 'trap "" HUP INT TERM; kill $!; [ ! -O "${NAME}" ] || rm -rf -- "${NAME}"' EXIT # more signals follow
"$@" && {{ sleep infinity & wait; }}"""
CHECK = """\
[[ $(sha256sum <"$1") = "$2 "* ]] && exit
echo "$0: $1 on $(uname -n) does not have the recorded SHA-256" >&2
exit 1"""

#: Copies the file $1 to the path $2 on all nodes (flux-archive(1)).
FLUX_ARCHIVE = """\
name=${2%/*} name=${name##*/}
flux archive create --mmap --name=$name --directory="${1%/*}" "${1##*/}" &&
flux exec --noinput --rank=all flux archive extract --waitcreate --name=$name --directory="${2%/*}" &&
flux archive remove --name=$name"""

#: The job: `start` is the command that starts a process on each of its `nodes`, `env` its environment,
#: and `copy` the text for bash that copies.
Job = namedtuple("Job", "start nodes env copy")


def main(arguments):
    if arguments[:1] == ["--node"]:
        return on_node()
    if arguments == ["--help"]:
        print(__doc__, end="")
        return 0
    variables = []
    try:
        if arguments:
            files = hash_files(arguments)
        else:
            files, variables = find_files(os.environ)
        copies = stage(files)
    except (LaunchError, subprocess.CalledProcessError) as error:
        print_message(PROGRAM, error)
        return 1
    except OSError as error:
        print_message(PROGRAM, f"{error.filename}: {error.strerror}. Check the path, and see --help")
        return 1
    changes = dict.fromkeys(variables, copies[0]) or {"PYTORCH_STAGED": os.path.dirname(copies[0])}
    return write_output(PROGRAM, statements(changes))


def find_files(env):
    """The file of the loaded module with its recorded SHA-256, and the variables that name it. Raises LaunchError."""
    root = env.get("CONTAINERROOT")
    # a variable may name the copy of an earlier job, which sbatch passed on
    if env.get("PYTORCH_PACKED"):
        variables = ["PYTORCH_PACKED"]
        record = f"{root}/provenance/packed.json"
        original = f"{root}/venv.squashfs"
    elif env.get("SIFPYTORCH"):
        variables = ["SIF", "SIFPYTORCH"]
        record = f"{root}/provenance/image.json"
        original = f"{root}/{os.path.basename(env['SIFPYTORCH'])}"
    else:
        raise LaunchError("no image or packed venv to stage", "load a PyTorch module with a container or a packed venv")
    try:
        with open(record) as file:
            path = original if os.path.isfile(original) else env[variables[-1]]
            return {path: json.load(file)["sha256"]}, variables
    except (OSError, ValueError, LookupError) as error:
        raise LaunchError(f"cannot read {record} ({error})", "install the module again") from error


def hash_files(paths):
    """The files that the user named, with their SHA-256. Raises OSError."""
    files = {}
    for path in map(os.path.abspath, paths):
        with open(path, "rb") as file:
            files[path] = subprocess.check_output(["sha256sum"], stdin=file).split()[0].decode()
    return files


def find_job(env):
    """The Job around this process. Raises LaunchError, OSError."""
    if env.get("FLUX_URI") and not env.get("SLURM_JOB_ID"):
        nodes = int(subprocess.check_output(["flux", "getattr", "size"]))
        return Job(["flux", "exec", "--rank=all"], nodes, dict(env), FLUX_ARCHIVE)
    allocation = slurm_allocation(env)
    nodes = allocation.nodes
    start = [*SRUN.split(), f"--jobid={allocation.job}", f"--nodes={nodes}", f"--ntasks={nodes}"]
    return Job(start, nodes, outside_of_jobs(env), f"sbcast --jobid={allocation.job} " + '"$1" "$2"')


def stage(files):
    """Copy `files`, path to SHA-256, to a new directory on each node; return the paths of the copies.

    A process on each node removes them with the job, here after an error. Raises LaunchError, OSError.
    """
    job = find_job(os.environ)
    base = os.path.abspath(os.getenv(CHOSEN) or os.getenv("TMPDIR") or "/tmp")  # noqa: S108
    directory = os.path.join(base, f"pytorch-stage-{secrets.token_hex(16)}")
    copies = {path: os.path.join(directory, os.path.basename(path)) for path in files}
    job.env[NAME] = directory
    stay = [*job.start, "bash", "-c", STAY, PROGRAM, *SELF, "--node"]
    stays = subprocess.Popen(stay, env=job.env, start_new_session=True, **PIPES)  # without Ctrl-C
    try:
        wait_for_nodes(stays.stdout, job.nodes)
        # all nodes make the directory at once: who sees its name on one has no time to make it on the next one first
        stays.stdin.write(b"go\n")
        wait_for_nodes(stays.stdout, job.nodes)
        for path, expected in files.items():
            call(job, ["bash", "-c", job.copy, PROGRAM, path, copies[path]])
            call(job, [*job.start, "bash", "-c", CHECK, PROGRAM, copies[path], expected])
    except BaseException:
        # srun kills its tasks when it is terminated
        subprocess.call([*job.start, "rm", "-rf", "--", directory], env=job.env, stdin=subprocess.DEVNULL, stdout=2)
        stays.terminate()
        raise
    print_message(PROGRAM, f"{', '.join(files)} copied to {job.nodes} nodes: {directory}")
    return list(copies.values())


def call(job, command):
    """Run a command that copies or checks, and reports errors itself. Raises LaunchError if it fails."""
    if subprocess.call(command, env=job.env, stdin=subprocess.DEVNULL, stdout=2):
        raise LaunchError("the copy failed", OTHERWISE)


def wait_for_nodes(output, nodes):
    """Wait until this number of nodes is ready. Raises LaunchError if one is not: under Flux the others stay."""
    deadline = time.monotonic() + NODES_SECONDS
    text = b""
    while select.select([output], [], [], max(0, deadline - time.monotonic()))[0]:
        piece = os.read(output.fileno(), 65536)
        text += piece
        lines = [line.strip() for line in text.decode(errors="replace").split("\n")[:-1]]
        faults = [line[len(FAULT) :] for line in lines if line.startswith(FAULT)]
        if faults:
            raise LaunchError(faults[0], OTHERWISE)
        if lines.count(READY) == nodes:
            return
        if not piece:
            others = [line for line in lines if line != READY] or ["no answer from the nodes"]
            raise LaunchError(others[0], OTHERWISE)
    raise LaunchError(f"not all of {nodes} nodes answered within {NODES_SECONDS} s", OTHERWISE)


def on_node():
    """Make the directory of the copies on this node, and print the answer; return the exit status."""
    directory = os.environ[NAME]
    base = os.path.dirname(directory)
    try:
        fault = find_fault(base)
        if not fault:
            write_output(PROGRAM, READY + "\n")
            if not sys.stdin.readline():
                return 1  # pytorch-stage has ended
            os.mkdir(directory, 0o700)
            return write_output(PROGRAM, READY + "\n")
    except FileExistsError:
        fault = "it is shared between nodes, or another user has made the directory first"
    except OSError as error:
        fault = str(error)
    write_output(PROGRAM, f"{FAULT}{os.uname().nodename}: {base}: {fault}\n")
    return 1


def find_fault(base):
    """Why the directory cannot be in `base`, None if it can."""
    reason = unsuitable(base, os.getuid())
    if reason:
        return reason
    kind = subprocess.check_output(["stat", "--file-system", "--format=%T", base]).decode().strip()
    if kind not in ON_DISK and not os.getenv(CHOSEN):
        return f"it is on {kind}, and not on a disk of the node"
    return None
