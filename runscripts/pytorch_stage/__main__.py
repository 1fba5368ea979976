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
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # `python -I` leaves it out

from pytorch_launch.shell import statements  # noqa: E402  (from the directory above)

from pytorch_stage import node  # noqa: E402

DIRECTORY = "PYTORCH_LAUNCH_STAGE_DIR"
#: Slurm's variables that lead to the job. The others describe a step or a script, and srun takes them as options.
OF_THE_JOB, OTHERS = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_CLUSTER_NAME"), ("SLURM_", "SLURMD_", "SRUN_", "PMI")
SRUN = (
    "srun",
    "--overlap",
    "--ntasks-per-node=1",
    "--cpu-bind=none",
    "--mpi=none",
    "--gres=none",
    "--quiet",
    "--kill-on-bad-exit=0",
    "--wait=0",
    "--job-name=pytorch-stage",
)
#: Names tried in one directory, where another user can create one first.
NAMES = 5
#: For processes to start on all nodes; between two messages while a command runs.
START_SECONDS, MESSAGE_SECONDS = 120, 5
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
    """Why nothing was staged, as a sentence without its full stop, and `advice`; `retry` is that of NodeError."""

    def __init__(
        self, text, advice=f"Set {DIRECTORY} to a directory on a disk of each node, or use the shared file", retry=""
    ):
        super().__init__(text)
        self.advice, self.retry = advice, retry


class DamagedError(StageError):
    """The shared file is not the one that was installed."""


def main(arguments):
    """Run the command; return the exit status."""
    place = arguments.index("--") if "--" in arguments else len(arguments)
    own, launcher = arguments[:place], arguments[place + 1 :]
    if own == ["--help"]:
        print(__doc__, end="")
        return 0
    is_plain = own[:1] == ["--print"]
    if not is_plain:
        print("! :", flush=True)  # the status of `source` if nothing follows
    if any(word.startswith("-") for word in own[is_plain:]):
        say(f"unknown arguments '{' '.join(own)}'. See --help")
        return 2
    for number in node.SIGNALS:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    files = {}
    try:
        files, variables = given(own[is_plain:]) if own[is_plain:] else loaded(os.environ)
        staging = stage(files, dict(os.environ), launcher)
    except (StageError, OSError) as error:
        say(f"{error}. {getattr(error, 'advice', 'Check the path')}")
        if is_plain and not isinstance(error, DamagedError):
            print(*files, sep="\n")
        return 1
    try:
        print(result(files, variables, staging, is_plain), flush=True)
    except OSError:  # the shell has ended
        staging.remove()
        return 1
    if is_plain and staging.how != "Slurm":
        say(f"to remove the copies: {' '.join(map(shlex.quote, staging.removal[0]))}")
    return 0


def result(files, variables, staging, is_plain):
    """What the command prints: the paths of the copies, or lines to source."""
    copies = [node.copy_of(path, staging.order) for path in files]
    if is_plain:
        return "\n".join(copies)
    exports = statements(dict.fromkeys(variables, copies[0]) or {"PYTORCH_STAGED": staging.directory})
    function, kept = f"pytorch_stage_{secrets.token_hex(4)}", ("HOME", "LD_LIBRARY_PATH", "PATH", *OF_THE_JOB)
    env = ["env", "-i", *(f"{name}={os.environ[name]}" for name in kept if name in os.environ)]
    lines = [" ".join(map(shlex.quote, env * (staging.how == "Slurm") + command)) for command in staging.removal]
    return f"""{exports}{function}() {{ {{ {"; ".join(lines)}; }} </dev/null >/dev/null 2>&1 || :; }}
{AT_EXIT}pytorch_stage_at_exit {function}"""


def loaded(env):
    """The file of the loaded module with its recorded SHA-256, and the variables that name it. Raises StageError."""
    root, again = env.get("CONTAINERROOT", ""), "Install the module again"
    if env.get("PYTORCH_PACKED"):
        # the variable may name a copy already
        path, record, variables = os.path.join(root, "venv.squashfs"), "packed.json", ["PYTORCH_PACKED"]
    elif env.get("SIFPYTORCH"):
        # the module falls back to a copy of the site, of the same name
        own = os.path.join(root, os.path.basename(env["SIFPYTORCH"]))
        path, record, variables = own if os.path.isfile(own) else env["SIFPYTORCH"], "image.json", ["SIF", "SIFPYTORCH"]
    else:
        raise StageError("no image or packed venv to stage", "Load a PyTorch module with a container or a packed venv")
    record = os.path.join(root, "provenance", record)
    try:
        with open(record) as file:
            values = json.load(file)
        sha256, size, found = values["sha256"], int(values["size"]), os.path.getsize(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StageError(f"cannot read {record} or {path} ({error})", again) from error
    if found != size:
        raise DamagedError(f"{path} has {found} bytes, and its installation recorded {size}", again)
    return {path: sha256}, variables


def given(paths):
    """The files that the user named with their SHA-256, and no variables. Raises StageError, OSError."""
    paths = list(dict.fromkeys(map(os.path.abspath, paths)))
    if len({os.path.basename(path) for path in paths}) < len(paths):
        raise StageError("two files have the same name", "Stage them one after the other")
    for path in paths:
        if not os.path.isfile(path):
            raise StageError(f"{path} is not a file", "Check the path. Pack a directory with tar or mksquashfs first")
    with reported(f"computing the SHA-256 of {', '.join(paths)}"):
        return {path: node.sha256(path) for path in paths}, []


def stage(files, env, launcher):
    """Copy `files`, path to SHA-256, to each node; return the Staging. Raises StageError."""
    size, chosen, reasons = sum(map(os.path.getsize, files)), env.get(DIRECTORY), {}
    # SLURM_TMPDIR: https://docs.alliancecan.ca/wiki/Using_node-local_storage
    own = (env.get("SLURM_TMPDIR"), env.get("TMPDIR"), "/tmp", "/var/tmp")  # noqa: S108  (names in them are random)
    for base in [os.path.abspath(chosen)] if chosen else dict.fromkeys(filter(None, own)):
        for _ in range(NAMES):
            name = f"pytorch-stage-{secrets.token_hex(16)}"
            order = {"base": base, "name": name, "chosen": bool(chosen), "files": files, "size": size}
            staging = Staging(order, env, launcher)
            try:
                staging.copy()
                return staging
            except BaseException as error:
                staging.remove()
                if not getattr(error, "retry", ""):
                    raise
                reasons[base] = f"{error}"
                if error.retry == "base":
                    break
    raise StageError("; ".join(reasons.values()))


class Staging:
    """Copies of files in a new directory on each node.

    `order`    for the nodes, see node.py
    `how`      Slurm, Flux or launcher, with the command that starts a process on each node, and its environment `env`
    `holder`   a step of Slurm that ends with the job, and then removes the directory
    `removal`  the commands that remove the directory
    """

    def __init__(self, order, env, launcher):
        self.order, self.directory, self.env = order, node.directory(order), env
        job, nodes = env.get("SLURM_JOB_ID"), env.get("SLURM_JOB_NUM_NODES")
        if launcher:
            self.how, self.start = "launcher", launcher
        elif job and nodes and "SLURM_HET_SIZE" not in env:
            self.how, self.start = "Slurm", [*SRUN, f"--jobid={job}", f"--nodes={nodes}", f"--ntasks={nodes}"]
            self.env = {name: env[name] for name in env if name in OF_THE_JOB or not name.startswith(OTHERS)}
        elif env.get("FLUX_URI") and not job:
            self.how, self.start = "Flux", ["flux", "exec", "--noinput", "--rank=all"]
        else:
            raise StageError(
                "no Slurm job of one component, and no Flux job",
                "Name the command that starts one process on each node: pytorch-stage -- mpirun --map-by ppr:1:node",
            )
        self.holder, self.removal = None, [[*self.start, "rm", "-rf", "--", self.directory]]

    def copy(self):
        """Make the directory, copy the files, and check the copies. Raises StageError."""
        began, files = time.monotonic(), self.order["files"]
        text = f"{', '.join(map(os.path.basename, files))} ({self.order['size'] / 1e9:.2f} GB)"
        if self.how == "launcher":
            nodes = self.run_on_nodes(["examine", "make", "copy", "check"], f"copying {text}")
        else:
            self.hold() if self.how == "Slurm" else self.run_on_nodes(["examine", "make"], "creating the directory")
            for command in [command for path in files for command in self.copy_commands(path)]:
                self.run(command, self.env, f"copying {text}")
            nodes = self.run_on_nodes(["check"], f"checking {text}")
        say(f"{text} copied to {nodes} node{'s' * (nodes > 1)} in {time.monotonic() - began:.1f} s: {self.directory}")

    def copy_commands(self, path):
        """The commands of Slurm or Flux that copy a file to the directory on each node."""
        if self.how == "Slurm":
            return [["sbcast", f"--jobid={self.env['SLURM_JOB_ID']}", path, node.copy_of(path, self.order)]]
        archive, name = ["flux", "archive"], f"--name={self.order['name']}"  # flux-archive(1)
        return [
            [*archive, "create", "--mmap", name, f"--directory={os.path.dirname(path)}", os.path.basename(path)],
            [*self.start, *archive, "extract", "--waitcreate", name, f"--directory={self.directory}"],
            [*archive, "remove", name],
        ]

    def hold(self):
        """Start the step that makes the directory and stays. Raises StageError."""
        remove, self.removal = self.removal[0], []
        with tempfile.TemporaryFile() as errors, reported("starting a process on each node", START_SECONDS), blocked():
            self.holder = self.popen(*self.node_process(["hold"]), errors, subprocess.PIPE)
            answers = self.answers_of_holder(errors)
            # the step may have been killed; without it, no process can remove the directory in a job that is canceled
            self.removal = [remove, ["scancel", "--signal=TERM", f"{self.env['SLURM_JOB_ID']}.{answers[0]['step']}"]]
            self.raise_first_problem(answers)
            # all nodes make the directory at once: a user who sees its name on one cannot make it on the next one first
            self.holder.stdin.write(b"make\n")
            self.holder.stdin.flush()
            self.raise_first_problem(self.answers_of_holder(errors))

    def answers_of_holder(self, errors):
        """One answer of each node. Raises StageError."""
        answers = []
        while not answers or len(answers) < int(answers[0]["tasks"]):
            line = self.holder.stdout.readline()
            answers += self.answers([line])
            if not line:
                self.raise_first_problem(answers)
                errors.seek(0)
                raise StageError(last_line(errors.read()))
        return answers

    def run_on_nodes(self, steps, what):
        """Do steps of the order on each node; return the number of nodes. Raises StageError."""
        answers = self.answers(self.run(*self.node_process(steps), what).splitlines())
        self.raise_first_problem(answers)
        if not answers:
            raise StageError(f"no answer from the processes that {self.start[0]} was to start")
        return len(answers)

    def run(self, command, env, what):
        """Run a command; return its output. Raises StageError if it fails, unless a node has answered."""
        process = self.popen(command, env, subprocess.PIPE)
        try:
            with reported(what):
                output, errors = process.communicate()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        if process.returncode and not any(answer["problem"] for answer in self.answers(output.splitlines())):
            # sbcast has one error for a full disk and others
            raise StageError(last_line(errors) + (", or the disk is full" if command[0] == "sbcast" else ""))
        return output

    def node_process(self, steps):
        """The command that does steps of the order on each node, and its environment."""
        order = json.dumps({**self.order, "steps": steps})
        return [*self.start, sys.executable, "-I", "-S", node.__file__], {**self.env, node.VARIABLE: order}

    def popen(self, command, env, errors, stdin=subprocess.DEVNULL):
        """Start a command that Ctrl-C does not interrupt. Raises StageError."""
        try:
            return subprocess.Popen(
                command, env=env, stdin=stdin, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        except OSError as error:
            advice = "Add it to PATH, or name another launcher after `--`"
            raise StageError(f"cannot run {command[0]}: {error.strerror}", advice) from error

    def answers(self, lines):
        """The answers of nodes in lines of output."""
        name = self.order["name"].encode()
        return [json.loads(line.partition(name)[2].decode()) for line in lines if name + b"{" in line]

    def raise_first_problem(self, answers):
        """Raise StageError for a problem that a node reports; first one that another directory does not solve."""
        for retry, text in sorted((answer["retry"], answer["problem"]) for answer in answers if answer["problem"]):
            for path, sha256 in self.order["files"].items():
                if "SHA-256" in text and node.sha256(path) != sha256:
                    raise DamagedError(f"{path} is damaged: its SHA-256 is not the recorded one", "Install it again")
            raise StageError(text, retry=retry)

    def remove(self):
        """Remove the directory on each node, after a failure."""
        with blocked(), reported("removing the copies"), contextlib.suppress(StageError, OSError):
            if self.holder:
                self.holder.stdin.close()  # nodes that have not made the directory do not make it
            for command in self.removal:
                self.popen(command, self.env, subprocess.DEVNULL).communicate()
            if self.holder:
                if not self.removal:
                    self.holder.kill()
                self.holder.wait()


@contextlib.contextmanager
def blocked():
    """Handle signals after the block."""
    signal.pthread_sigmask(signal.SIG_BLOCK, node.SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, node.SIGNALS)


@contextlib.contextmanager
def reported(what, limit=float("inf")):
    """Print a line every MESSAGE_SECONDS during the block; raise StageError after `limit` seconds."""
    began = time.monotonic()

    def report(*_):
        seconds = time.monotonic() - began
        if seconds > limit:
            raise StageError(f"{what}: not done after {limit} s")
        say(f"{what}: {seconds:.0f} s")

    signal.signal(signal.SIGALRM, report)
    signal.setitimer(signal.ITIMER_REAL, MESSAGE_SECONDS, MESSAGE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def last_line(errors):
    """The last line that a command has written to its standard error, without what follows from it in other tasks."""
    lines = [line for line in errors.decode(errors="replace").splitlines() if line and "xited with exit" not in line]
    return lines[-1].rstrip(".") if lines else "a process failed without a message"


def say(text):
    """Print a line on standard error."""
    print(f"pytorch-stage: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
