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
                            that is on a disk of each node and has enough room
"""

import contextlib
import hashlib
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # `python -I` leaves it out

from pytorch_launch.caches import unsuitable  # noqa: E402  (from the directory above)
from pytorch_launch.environment import statements  # noqa: E402

DIRECTORY = "PYTORCH_LAUNCH_STAGE_DIR"
OTHERWISE = f"Set {DIRECTORY} to a directory on a disk of each node, or use the shared file"
#: The order for the nodes, in JSON. Other users can read arguments, and create the directory first.
ORDER = "PYTORCH_STAGE_ORDER"
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
#: File systems on a disk of the node, as stat(1) names them. An overlay can be in memory.
ON_DISK = ("btrfs", "ext2/ext3", "f2fs", "xfs", "zfs")
#: Variables for Slurm's commands. Others describe a step or a script, and srun takes them as options.
FOR_SLURM = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "SLURM_CONF", "SLURM_JOB_ID", "SLURM_CLUSTER_NAME")
SRUN = (
    *("srun", "--overlap", "--ntasks-per-node=1", "--cpu-bind=none", "--mpi=none", "--gres=none", "--quiet"),
    *("--kill-on-bad-exit=0", "--wait=0", "--job-name=pytorch-stage"),
)
#: For processes to start on all nodes. One that has died without an answer does not end the others.
START_SECONDS = 120
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


class DamagedError(StageError):
    """The shared file is not the one that was installed."""


def main(arguments):
    place = [*arguments, "--"].index("--")
    own, launcher = arguments[:place], arguments[place + 1 :]
    if own == ["--help"]:
        print(__doc__, end="")
        return 0
    is_plain = own[:1] == ["--print"]
    if any(word.startswith("-") for word in own[is_plain:]):
        print_message(f"unknown arguments '{' '.join(own)}'. See --help")
        return 2
    for number in SIGNALS:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    files, staging = {}, None
    try:
        files, variables = given(own[is_plain:]) if own[is_plain:] else loaded(os.environ)
        staging = Staging(files, dict(os.environ), launcher)
        staging.copy()
        plain = "\n".join(copy_of(path, staging.order) for path in files)
        print(plain if is_plain else staging.shell_code(variables), flush=True)
    except BaseException as error:
        if staging:
            staging.remove()
        if not isinstance(error, (StageError, OSError)):
            raise
        print_message(f"{error}" if isinstance(error, StageError) else f"{error}. Check the path")
        if is_plain and not isinstance(error, DamagedError):
            print(*files, sep="\n")
        return 1
    if is_plain and not staging.holder:
        print_message(f"to remove the copies: {' '.join(map(shlex.quote, staging.removal[0]))}")
    return 0


def loaded(env):
    """The file of the loaded module with its recorded SHA-256, and the variables that name it. Raises StageError."""
    root = env.get("CONTAINERROOT", "")
    if env.get("PYTORCH_PACKED"):
        # the variable may name a copy already
        path, record, variables = os.path.join(root, "venv.squashfs"), "packed.json", ["PYTORCH_PACKED"]
    elif env.get("SIFPYTORCH"):
        # the module falls back to a copy of the site, of the same name
        own = os.path.join(root, os.path.basename(env["SIFPYTORCH"]))
        path, record, variables = own if os.path.isfile(own) else env["SIFPYTORCH"], "image.json", ["SIF", "SIFPYTORCH"]
    else:
        raise StageError("no image or packed venv to stage. Load a PyTorch module with a container or a packed venv")
    record = os.path.join(root, "provenance", record)
    try:
        with open(record) as file:
            values = json.load(file)
        sha256, size, found = values["sha256"], int(values["size"]), os.path.getsize(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StageError(f"cannot read {record} or {path} ({error}). Install the module again") from error
    if found != size:
        raise DamagedError(f"{path} has {found} bytes, and its installation recorded {size}. Install the module again")
    return {path: sha256}, variables


def given(paths):
    """The files that the user named with their SHA-256, and no variables. Raises StageError, OSError."""
    paths = list(dict.fromkeys(map(os.path.abspath, paths)))
    if len({os.path.basename(path) for path in paths}) < len(paths):
        raise StageError("two files have the same name. Stage them one after the other")
    for path in paths:
        if not os.path.isfile(path):
            raise StageError(f"{path} is not a file. Check the path. Pack a directory with tar or mksquashfs first")
    report(f"computing the SHA-256 of {', '.join(paths)}")
    return {path: sha256(path) for path in paths}, []


class Staging:
    """Copies of files, path to SHA-256, in a new directory on each node.

    `order`    for the nodes, see `on_node`
    `how`      Slurm, Flux or launcher, with the command that starts a process on each node, and its environment `env`
    `holder`   a step of Slurm that removes the directory when the job ends
    `removal`  the commands that remove the directory
    """

    def __init__(self, files, env, launcher):
        self.how, self.start, self.env, self.removal = "launcher", launcher, env, []
        self.job, self.nodes = env.get("SLURM_JOB_ID"), env.get("SLURM_JOB_NUM_NODES")
        self.process = self.holder = None
        if not launcher and self.job and self.nodes and "SLURM_HET_SIZE" not in env:
            where = [f"--jobid={self.job}", f"--nodes={self.nodes}", f"--ntasks={self.nodes}"]
            self.how, self.start = "Slurm", [*SRUN, *where]
            self.env = {name: env[name] for name in env if name in FOR_SLURM or name.startswith("SBCAST_")}
        elif not launcher and not self.job and env.get("FLUX_URI"):
            self.how, self.start = "Flux", ["flux", "exec", "--noinput", "--rank=all"]
        elif not launcher:
            raise StageError(
                "no Slurm job of one component, and no Flux job. Name the command that starts one process "
                "on each node: pytorch-stage -- mpirun --map-by ppr:1:node"
            )
        chosen, own = env.get(DIRECTORY), (env.get("SLURM_TMPDIR"), env.get("TMPDIR"), "/tmp", "/var/tmp")  # noqa: S108
        bases = list(dict.fromkeys(map(os.path.abspath, [chosen] if chosen else filter(None, own))))
        self.order = {
            "name": f"pytorch-stage-{secrets.token_hex(16)}",
            "bases": bases,
            "chosen": bool(chosen),
            "files": files,
            "size": sum(map(os.path.getsize, files)),
        }

    def copy(self):
        """Make the directory, copy the files, and check the copies. Raises StageError."""
        began, files = time.monotonic(), self.order["files"]
        text = f"{', '.join(map(os.path.basename, files))} ({self.order['size'] / 1e9:.2f} GB)"
        report("starting a process on each node", START_SECONDS)
        self.hold() if self.how == "Slurm" else self.choose(self.run(self.on_nodes("examine"), 1))
        report(f"copying {text}")
        for command in self.copy_commands():
            self.run(command)
        nodes = len(self.run(self.on_nodes(*["make", "copy"] * (self.how == "launcher"), "check"), 1))
        text += f" copied to {nodes} node{'s' * (nodes > 1)} in {time.monotonic() - began:.1f} s"
        print_message(f"{text}: {self.order['directory']}")

    def hold(self):
        """Start the step of Slurm that makes the directory and stays. Raises StageError."""
        count = (int(self.nodes), int(self.nodes))
        answers = self.run(self.on_nodes("hold"), *count, subprocess.PIPE)
        self.holder = self.process
        self.choose(answers)
        # `srun rm` also removes it if the step was killed; only the step can in a job that is canceled
        self.removal.append(["scancel", "--signal=TERM", f"{self.job}.{answers[0]['step']}"])
        # all nodes make the directory at once: a user who sees its name on one cannot make it on the next one first
        self.holder.stdin.write(self.order["directory"].encode() + b"\n")
        self.answers(*count)

    def choose(self, answers):
        """Choose the first directory that is suitable on each node. Raises StageError."""
        problems = [next(filter(None, row), None) for row in zip(*(answer["bases"] for answer in answers))]
        if None not in problems:
            raise StageError(f"{'; '.join(problems)}. {OTHERWISE}")
        base = self.order["bases"][problems.index(None)]
        self.order["directory"] = os.path.join(base, self.order["name"])
        self.removal.append([*self.start, "rm", "-rf", "--", self.order["directory"]])

    def on_nodes(self, *steps):
        return [*self.start, sys.executable, "-I", "-S", os.path.abspath(__file__), "--node", *steps]

    def copy_commands(self):
        """The commands of Slurm or Flux that copy the files to the directory on each node."""
        if self.how == "Slurm":
            return [["sbcast", f"--jobid={self.job}", path, copy_of(path, self.order)] for path in self.order["files"]]
        commands, flux, name = [self.on_nodes("make")], ["flux", "archive"], f"--name={self.order['name']}"
        for path in self.order["files"]:  # flux-archive(1)
            create = [*flux, "create", "--mmap", name, f"--directory={os.path.dirname(path)}", os.path.basename(path)]
            extract = [*self.start, *flux, "extract", "--waitcreate", name, f"--directory={self.order['directory']}"]
            commands += [create, extract, [*flux, "remove", name]]
        return commands if self.how == "Flux" else []

    def run(self, command, least=0, most=None, stdin=subprocess.DEVNULL):
        """Start a command that Ctrl-C does not interrupt; return the answers of nodes. Raises StageError."""
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the command)
        env, output = {**self.env, ORDER: json.dumps(self.order)}, {"stdout": subprocess.PIPE, "stderr": self.errors}
        try:
            self.process = subprocess.Popen(command, 0, env=env, stdin=stdin, start_new_session=True, **output)
        except OSError as error:
            raise StageError(
                f"cannot run {command[0]}: {error.strerror}. Add it to PATH, or name another launcher after `--`"
            ) from error
        return self.answers(least, most)

    def answers(self, least, most):
        """The next `most` answers on the output of the command, or all until it ends; raises StageError if too few."""
        found, name = [], self.order["name"].encode()
        while len(found) != most:
            line = self.process.stdout.readline()
            if not line:
                break
            if name + b"{" in line:
                found.append(json.loads(line.partition(name)[2].decode()))
        for problem in [answer["problem"] for answer in found if answer["problem"]]:
            for path, expected in self.order["files"].items():
                if "SHA-256" in problem and sha256(path) != expected:
                    raise DamagedError(f"{path} is damaged: its SHA-256 is not the recorded one. Install it again")
            raise StageError(f"{problem}. {OTHERWISE}")
        if len(found) != most and (self.process.wait() or len(found) < least):
            self.errors.seek(0)
            lines = [line for line in self.errors.read().decode(errors="replace").splitlines() if line]
            lines = [line for line in lines if "xited with exit" not in line]  # from other tasks
            text = lines[-1].rstrip(".") if lines else f"no answer from the processes that {self.start[0]} was to start"
            # sbcast has one error for a full disk and others
            raise StageError(f"{text}{', or the disk is full' * (self.process.args[0] == 'sbcast')}. {OTHERWISE}")
        return found

    def shell_code(self, variables):
        """Lines to source that set the variables, and remove the copies when the shell exits."""
        copy, function = copy_of(next(iter(self.order["files"])), self.order), f"pytorch_stage_{secrets.token_hex(4)}"
        exports = statements(dict.fromkeys(variables, copy) or {"PYTORCH_STAGED": self.order["directory"]})
        env = ["env", "-i", *map("=".join, self.env.items())] * (self.how == "Slurm")
        removal = "; ".join(" ".join(map(shlex.quote, env + command)) for command in self.removal)
        return f"""{exports}{function}() {{ {{ {removal}; }} </dev/null >/dev/null 2>&1 || :; }}
{AT_EXIT}pytorch_stage_at_exit {function}"""

    def remove(self):
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        report("removing the copies")
        if self.holder:
            self.holder.stdin.close()  # nodes that have not made the directory do not make it
        if self.process and (self.process is not self.holder or not self.removal):
            self.process.terminate()
            self.process.wait()
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        for command in self.removal:
            with contextlib.suppress(OSError):
                subprocess.run(command, env=self.env, check=False, **streams)
        if self.holder:
            self.holder.wait()


def on_node(order, *steps):
    """Do steps on a node. Print answers, lines of JSON after the directory's name: what failed, or nothing.

    The steps are `examine`, or some of `make`, `copy` and `check`, or `hold`: examine, make, and remove at a signal.
    """

    def answer(**values):
        print(order["name"] + json.dumps({"step": os.environ.get("SLURM_STEP_ID"), **values}), flush=True)

    node, problem, is_holder = os.environ.get("SLURMD_NODENAME") or os.uname().nodename, None, "hold" in steps
    if is_holder:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    if is_holder or "examine" in steps:
        reasons = [(base, unfit(base, order)) for base in order["bases"]]
        answer(problem=None, bases=[reason and f"{node}: {base}: {reason}" for base, reason in reasons])
        order["directory"] = is_holder and sys.stdin.readline()[:-1]
        if not order["directory"]:
            return
    try:
        if is_holder or "make" in steps:
            os.mkdir(order["directory"], 0o700)
        for path, expected in order["files"].items():
            if "copy" in steps:
                shutil.copyfile(path, copy_of(path, order))
            if "check" in steps and sha256(copy_of(path, order)) != expected:
                problem = f"the copy of {path} has another SHA-256"
    except FileExistsError:
        owner = os.lstat(order["directory"]).st_uid
        shared = f"{os.path.dirname(order['directory'])} is shared between nodes, or two processes run on this node"
        problem = shared if owner == os.getuid() else f"user {owner} has made {order['directory']} first: try again"
    except OSError as error:
        problem = f"{error}"
    answer(problem=problem and f"{node}: {problem}")
    if is_holder and not problem:
        signal.sigwait(SIGNALS)  # by Slurm at the end of the job at the latest
        shutil.rmtree(order["directory"], ignore_errors=True)


def unfit(base, order):
    """Why the private directory cannot be in `base`; None if it can."""
    reason = unsuitable(base, os.getuid())
    if not reason and not order["chosen"]:
        kind = subprocess.check_output(["stat", "--file-system", "--format=%T", base]).decode().strip()
        reason = None if kind in ON_DISK else f"it is on {kind}, and not on a disk of the node"
    if not reason:
        room, needed = shutil.disk_usage(base).free, order["size"] + (64 << 20)  # 64 MiB stay free
        reason = f"{room / 1e9:.2f} GB free, {needed / 1e9:.2f} GB needed" if room < needed else None
    return reason


def copy_of(path, order):
    return os.path.join(order["directory"], os.path.basename(path))


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(4 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()


def report(what, limit=float("inf")):
    """From now on, print every 5 s what takes so long; raise StageError after `limit` seconds."""
    began = time.monotonic()

    def handle(*_):
        print_message(f"{what}: {time.monotonic() - began:.0f} s")
        if time.monotonic() - began > limit:
            raise StageError(f"{what}: not done after {limit} s. {OTHERWISE}")

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 5, 5)


def print_message(text):
    print(f"pytorch-stage: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] != ["--node"]:
        sys.exit(main(sys.argv[1:]))
    if ORDER not in os.environ:
        sys.exit(f"{ORDER} is not set on {os.uname().nodename}. Pass it on: mpirun -x {ORDER}")
    on_node(json.loads(os.environ[ORDER]), *sys.argv[2:])
