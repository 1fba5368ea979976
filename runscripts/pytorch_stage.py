# SPDX-License-Identifier: BSD-3-Clause
"""Usage: source <(pytorch-stage [FILE...] [-- LAUNCHER...])
       export SIF=$(pytorch-stage --print [FILE...] [-- LAUNCHER...])

Copies the image or the packed venv of the loaded module to each node of the job, and removes the copies when the shell
or the job ends. The first form sets the variables that name it (SIF and SIFPYTORCH, or PYTORCH_PACKED); the second
prints the path. If a copy fails, the variables stay as they are, and the status is 1.

  FILE          copy these files instead; the first form sets PYTORCH_STAGED to the directory of the copies
  --print       print the paths of the copies, one on a line
  -- LAUNCHER   the command that starts one process on each node, if the job is not one of Slurm or Flux:
                pytorch-stage -- mpirun --map-by ppr:1:node

  PYTORCH_LAUNCH_STAGE_DIR  the directory on the nodes; by default SLURM_TMPDIR, TMPDIR, /tmp or /var/tmp, the first
                            that is on a disk and has enough room
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytorch_command
from pytorch_command import outside_of_jobs, print_message, write_output
from pytorch_launch.caches import unsuitable
from pytorch_launch.report import statements

PROGRAM, DIRECTORY = "pytorch-stage", "PYTORCH_LAUNCH_STAGE_DIR"
OTHERWISE = f"Set {DIRECTORY} to a directory on a disk of each node, or use the shared file"
#: The order for the nodes, in JSON. Other users can read arguments, and create the directory first.
ORDER = "PYTORCH_STAGE_ORDER"
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
#: File systems on a disk of the node, as stat(1) names them. An overlay can be in memory.
ON_DISK = ("btrfs", "ext2/ext3", "f2fs", "xfs", "zfs")
SRUN = (
    *("srun", "--overlap", "--ntasks-per-node=1", "--cpu-bind=none", "--mpi=none", "--gres=none", "--quiet"),
    *("--kill-on-bad-exit=0", "--wait=0", "--job-name=pytorch-stage"),
)
SELF = (sys.executable, "-I", "-S", os.path.abspath(pytorch_command.__file__), PROGRAM)
#: What a node answers, and what ends the wait for answers: a node's fault, or what srun prints for a process that did
#: not end by itself; it goes on with the others.
DONE, FAULT = f"{PROGRAM}=done", f"{PROGRAM}: "
ENDS = re.compile(rf"{FAULT}|^srun: error: (.*tasks? [\d,-]+: |Node failure)")
#: For processes to start on all nodes.
START_SECONDS = 120
#: Between two looks for the directory, with which the step that stays ends.
LOOK_SECONDS = 2
#: Another user who sees the directory's name on one node may make it on the next: each try has a new name.
TRIES, FIRST = 5, " first: try again"
DIFFERS, COMPARE = "has not the recorded SHA-256", "If `sha256sum` of the file differs from it, install it again"
#: Runs a function when the shell exits, after the command that the user has set for this. `trap -p` in a subshell
#: prints the command of its parent until the subshell sets a trap, here one without effect.
AT_EXIT = """\
pytorch_stage_at_exit() {
    if [ -n "${ZSH_VERSION-}" ]; then zshexit_functions+=("$1"); return; fi
    trap - KILL
    eval "set -- \\"\\$1\\" $(trap -p EXIT)"
    trap -- "${4:+$4
}$1" EXIT
}
"""


class StageError(Exception):
    """Why nothing was staged, and what to do, without the last full stop."""


def main(arguments):
    mode, order = arguments[:1], os.environ.get(ORDER)
    if mode == ["--remove"]:
        return remove(arguments[1], arguments[2:])
    if mode == ["--node"]:
        missing = f"{ORDER} is not set on {os.uname().nodename}. Pass it on: mpirun -x {ORDER}"
        return on_node(arguments[1], **json.loads(order)) if order else missing
    if arguments == ["--help"]:
        print(__doc__, end="")
        return 0
    end, is_plain = [*arguments, "--"].index("--"), mode == ["--print"]
    paths, launcher = arguments[is_plain:end], arguments[end + 1 :]
    if any(path.startswith("-") for path in paths):
        print_message(PROGRAM, f"unknown arguments '{' '.join(arguments[:end])}'. See --help")
        return 2
    for number in SIGNALS:
        signal.signal(number, interrupt)
    files = {}
    try:
        files, variables = given(paths) if paths else loaded(os.environ)
        for left in reversed(range(TRIES)):
            try:
                with contextlib.ExitStack() as undo:
                    copies, removal, is_held = stage(files, launcher, undo)
                    text = "\n".join(copies) if is_plain else shell_code(copies, variables, removal)
                    if write_output(PROGRAM, text + "\n"):
                        return 1
                    undo.pop_all()
                break
            except StageError as error:
                if not left or FIRST not in str(error):
                    raise
    except (StageError, OSError) as error:
        print_message(PROGRAM, f"{error}" if isinstance(error, StageError) else f"{error}. Check the path")
        if is_plain and DIFFERS not in str(error):
            print(*files, sep="\n")
        return 1
    if is_plain and not is_held:
        print_message(PROGRAM, f"to remove the copies: {removal}")
    return 0


def interrupt(number, _):
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


def loaded(env):
    """The file of the loaded module with its recorded SHA-256, and the variables that name it. Raises StageError."""
    root, image = env.get("CONTAINERROOT", ""), env.get("SIFPYTORCH")
    if env.get("PYTORCH_PACKED"):
        # the variable may name a copy already
        path, record, variables = f"{root}/venv.squashfs", "packed.json", ["PYTORCH_PACKED"]
    elif image:
        # the module falls back to a copy of the site, of the same name
        own = os.path.join(root, os.path.basename(image))
        path, record, variables = own if os.path.isfile(own) else image, "image.json", ["SIF", "SIFPYTORCH"]
    else:
        raise StageError("no image or packed venv to stage. Load a PyTorch module with a container or a packed venv")
    try:
        with open(f"{root}/provenance/{record}") as file:
            return {path: json.load(file)["sha256"]}, variables
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StageError(f"cannot read {root}/provenance/{record} ({error}). Install the module again") from error


def given(paths):
    """The files that the user named with their SHA-256, and no variables. Raises StageError, OSError."""
    for path in paths:
        if not os.path.isfile(path):
            raise StageError(f"{path} is not a file. Check the path")
    files = {path: sha256(path) for path in map(os.path.abspath, paths)}
    if len(set(map(os.path.basename, files))) < len(files):
        raise StageError("two files have the same name. Stage them one after the other")
    return files, []


def starter(env, launcher):
    """Slurm, Flux or launcher; the command that starts a process on each node; its environment. Raises StageError."""
    job, nodes = env.get("SLURM_JOB_ID"), env.get("SLURM_JOB_NUM_NODES")
    if launcher:
        return "launcher", launcher, dict(env)
    if job and nodes and "SLURM_HET_SIZE" not in env:
        where = [f"--jobid={job}", f"--nodes={nodes}", f"--ntasks={nodes}", f"--immediate={START_SECONDS}"]
        return "Slurm", [*SRUN, *where], {**outside_of_jobs(env), "SLURM_JOB_ID": job}
    if not job and env.get("FLUX_URI"):
        return "Flux", ["flux", "exec", "--noinput", "--rank=all"], dict(env)
    raise StageError(
        "no Slurm job of one component, and no Flux job. Name the command that starts one process "
        "on each node: pytorch-stage -- mpirun --map-by ppr:1:node"
    )


def choose_base(size):
    """The user's directory, else the first one that is suitable here. Raises StageError if none is."""
    if os.environ.get(DIRECTORY):
        return os.path.abspath(os.environ[DIRECTORY])
    problems, names = [], filter(None, map(os.environ.get, ("SLURM_TMPDIR", "TMPDIR")))
    for base in map(os.path.abspath, (*names, "/tmp", "/var/tmp")):  # noqa: S108
        try:
            check_base(base, size, is_chosen=False)
            return base
        except StageError as error:
            problems.append(str(error))
    raise StageError(f"{'; '.join(problems)}. {OTHERWISE}")


def stage(files, launcher, undo):
    """Copy `files`, path to SHA-256, to a new directory on each node; `undo` ends and removes it all.

    Return the paths of the copies, a command that removes them, and whether a step removes them with the job.
    Raises StageError.
    """
    how, start, env = starter(dict(os.environ), launcher)
    began, size = time.monotonic(), sum(map(os.path.getsize, files))
    directory = os.path.join(choose_base(size), f"pytorch-stage-{secrets.token_hex(16)}")
    order = {"files": files, "size": size, "is_chosen": bool(os.environ.get(DIRECTORY)), "directory": directory}
    env[ORDER], copies = json.dumps(order), [copy_of(path, directory) for path in files]

    def run(*command):
        if not shutil.which(command[0]):
            raise StageError(f"{command[0]} not found on PATH. Add it, or name another launcher after `--`")
        # in a session, so that Ctrl-C does not interrupt it
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, 0, env=env, start_new_session=True, **pipes)
        undo.callback(end, process)
        return process

    signal.signal(signal.SIGALRM, is_late)
    undo.callback(signal.alarm, 0)
    signal.alarm(START_SECONDS + 10)  # srun, which has --immediate, reports first why no step can start
    if how == "Slurm":
        holder, count = run(*start, *SELF, "--node", "hold"), int(os.environ["SLURM_JOB_NUM_NODES"])
        wait_for(holder, count)
        undo.callback(remove, directory, launcher)
        # all nodes make the directory at once: a user who sees its name on one cannot make it on the next one first
        holder.stdin.write(b"go\n")
        wait_for(holder, count)
        commands = [["sbcast", f"--jobid={os.environ['SLURM_JOB_ID']}", *pair] for pair in zip(files, copies)]
    else:
        undo.callback(remove, directory, launcher)
        wait_for(run(*start, *SELF, "--node", "make"))
        commands = flux_commands(start, files, directory) if how == "Flux" else []
    undo.callback(signal.alarm, 0)  # before the removal, which also takes time
    signal.alarm(0)
    for command in commands:
        wait_for(run(*command), 0)
    nodes = wait_for(run(*start, *SELF, "--node", "copy" if how == "launcher" else "check"))
    text = f"{', '.join(map(os.path.basename, files))} ({size / 1e9:.2f} GB) copied to {nodes} node{'s' * (nodes > 1)}"
    print_message(PROGRAM, f"{text} in {time.monotonic() - began:.1f} s: {directory}")
    return copies, " ".join(map(shlex.quote, [*SELF, "--remove", directory, *launcher])), how == "Slurm"


def is_late(*_):
    raise StageError(f"no process on some node after {START_SECONDS + 10} s. {OTHERWISE}")


def flux_commands(start, files, directory):
    """The commands that copy the files to the directory on each node of a job of Flux, as in flux-archive(1)."""
    archive, name = ["flux", "archive"], f"--name={os.path.basename(directory)}"
    for path in files:
        where = [f"--directory={os.path.dirname(path)}", os.path.basename(path)]
        yield [*archive, "create", "--mmap", name, *where]
        yield [*start, *archive, "extract", "--waitcreate", name, f"--directory={directory}"]
        yield [*archive, "remove", name]


def wait_for(process, count=None):
    """Wait for this number of answers of nodes; for all until the process ends, at least one; or for its end alone, 0.

    Return how many there were. Raises StageError for a fault of a node, or of the process.
    """
    answers, lines = 0, [f"no answer from the processes that {process.args[0]} was to start"]
    for line in iter(process.stdout.readline, b""):
        text = line.decode(errors="replace").strip()
        if DONE in text:
            answers += 1
            if answers == count:
                return answers
        elif text:
            if "xited with exit" not in text:  # its own error came before
                lines.append(text)
            if ENDS.search(text):
                break
    else:
        if process.wait() == 0 and (answers if count is None else count == 0):
            return answers
    # sbcast has one error for a full disk and others
    fault = lines[-1].rpartition(FAULT)[2].rstrip(".") + ", or the disk is full" * (process.args[0] == "sbcast")
    raise StageError(f"{fault}. {COMPARE if DIFFERS in fault else OTHERWISE}")


def end(process):
    process.stdin.close()  # nodes that have not made the directory do not make it
    process.terminate()  # srun passes it on
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(START_SECONDS)


def remove(directory, launcher):
    """Remove the directory on each node; the step that stays in a job of Slurm then ends."""
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    with contextlib.suppress(StageError, OSError):
        _, start, env = starter(dict(os.environ), launcher)
        command = ["timeout", str(START_SECONDS), *start, "rm", "-rf", "--", directory]
        subprocess.run(command, env=env, check=False, **streams)


def shell_code(copies, variables, removal):
    """Lines to source that set the variables, and remove the copies when the shell exits."""
    function = f"pytorch_stage_{secrets.token_hex(4)}"
    exports = statements(dict.fromkeys(variables, copies[0]) or {"PYTORCH_STAGED": os.path.dirname(copies[0])})
    return f"{exports}{function}() {{ {removal} || :; }}\n{AT_EXIT}pytorch_stage_at_exit {function}"


def on_node(step, files, size, is_chosen, directory):
    """Do a step on a node: `make`, `copy` and check, `check`, or `hold`: make when told to, and remove with the job."""
    path, base = directory, os.path.dirname(directory)
    try:
        if step in ("make", "hold"):
            check_base(base, size, is_chosen)
            if step == "hold":
                signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
                print(DONE, flush=True)
                if not sys.stdin.readline():
                    return
            os.mkdir(directory, 0o700)
        for file, expected in files.items():
            path = copy_of(file, directory)
            if step == "copy":
                shutil.copyfile(file, path)
            if step in ("copy", "check") and sha256(path) != expected:
                raise StageError(f"{file}, or its copy, {DIFFERS}")
        print(DONE, flush=True)
        while step == "hold" and os.path.isdir(directory) and not signal.sigtimedwait(SIGNALS, LOOK_SECONDS):
            pass  # Slurm signals at the end of the job
        if step == "hold":
            shutil.rmtree(directory, ignore_errors=True)
    except (StageError, OSError) as error:
        problem = f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error)
        if isinstance(error, FileExistsError):
            owner, shared = os.lstat(directory).st_uid, "is shared between nodes, or two processes run on this node"
            problem = f"{base} {shared}" if owner == os.getuid() else f"user {owner} has made {directory}{FIRST}"
        node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
        print(f"{FAULT}{node}: {problem}".encode(errors="backslashreplace").decode(), flush=True)


def check_base(base, size, is_chosen):
    """Raise StageError if the private directory cannot be in `base`."""
    reason = unsuitable(base, os.getuid())
    if not reason and not is_chosen:
        kind = subprocess.check_output(["stat", "--file-system", "--format=%T", base]).decode().strip()
        reason = None if kind in ON_DISK else f"it is on {kind}, and not on a disk of the node"
    if not reason:
        room, needed = shutil.disk_usage(base).free, size + (64 << 20)  # 64 MiB stay free
        reason = f"{room / 1e9:.2f} GB free, {needed / 1e9:.2f} GB needed" if room < needed else None
    if reason:
        raise StageError(f"{base}: {reason}")


def copy_of(path, directory):
    return os.path.join(directory, os.path.basename(path))


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(4 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()
