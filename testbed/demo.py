"""Usage: ./demo [--env | --shell | --clean | --help]

Trains PyTorch on two nodes of this machine: installs what is missing, starts a temporary Slurm
cluster, and runs the three commands of the README on it.

--env    print shell code: eval "$(./demo --env)" provides module, eb, srun, singularity in your shell
--shell  open such a shell
--clean  stop the cluster and delete everything that was installed

Everything is in one directory: $PYTORCH_TESTBED, or .testbed in this tree.
"""

import contextlib
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])
from testbed import recipes, shell  # noqa: E402
from testbed.layout import Layout, TestbedError  # noqa: E402
from testbed.lifecycle import down, up  # noqa: E402
from testbed.progress import exit_status  # noqa: E402
from testbed.recipes import CONTAINER, DATASET, VENV  # noqa: E402

LAUNCH = "srun -N2 --ntasks-per-node=2 {enter}conda-python-distributed -u $PAYLOAD/mnist_ddp.py"


def demonstrate(layout):
    """Run the README's commands, and print a summary."""
    phases = Phases()
    with phases.phase("testbed"):
        print("1. The testbed: Slurm, Lmod, EasyBuild, Apptainer", flush=True)
        obstacle = up(layout)

    print("\n2. Install (a few minutes the first time)", flush=True)
    installed = install(layout, obstacle, phases)

    print("\n3. Load and launch: 4 ranks on 2 nodes", flush=True)
    recipe = CONTAINER if CONTAINER in installed else VENV
    launch = LAUNCH.format(enter="singularity exec $SIF " if recipe == CONTAINER else "")
    commands = [f"module load {recipes.module(recipe)}", launch]
    if DATASET in installed:
        commands = [f"module load {recipes.module(DATASET)}", commands[0], f"{launch} --epochs 1"]
    with phases.phase("training"):
        output = run_shown(layout, *commands)
    accuracy = re.search(r"test accuracy: ([\d.]+) %", output)
    speed = re.findall(r"images/s (\d+)", output)
    if not accuracy or not speed:
        raise TestbedError("The training printed no accuracy. See the output above.")
    lines = "\n      ".join(commands)
    missing = sorted({CONTAINER, VENV} - set(installed))
    note = f"Not installed, for the reason above: {missing[0]}\n" if missing else ""
    print(f"""
Done in {phases.seconds():.0f} s: test accuracy {accuracy[1]} %, {speed[-1]} images/s on 2 nodes.
{note}
Time line
{"".join(phases.lines)}
Directories
  software and modules   {layout.easybuild}
  cluster and its logs   {layout.cluster}
Next steps
  eval "$(./demo --env)"   in your own shell, then in any directory:
      {lines}
  ./demo --shell           the same in a new shell
  ./demo --clean           stop the cluster, delete {layout.root}""")


class Phases:
    """When the phases of the demo begin and end, in seconds after its start. Phases may overlap."""

    def __init__(self):
        self.start = time.monotonic()
        self.lines = []

    def seconds(self):
        """The seconds since the start."""
        return time.monotonic() - self.start

    @contextlib.contextmanager
    def phase(self, title):
        """Record the block as a phase."""
        begin = self.seconds()
        yield
        self.lines.append(f"  {begin:4.0f} s to {self.seconds():4.0f} s  {title}\n")


def install(layout, obstacle, phases):
    """Install the data, and PyTorch as a container and as a virtual environment; return the installed recipes.

    Generated digits replace the data, and one of the two is enough, as containers may have an `obstacle` and the Python
    that the virtual environment needs may be missing. Both are installed at once: each uses about one core. The output
    of the second is in a log.
    """
    installed = []

    def attempt(recipe, action, *arguments, reason=None):
        try:
            if reason:
                raise TestbedError(reason)
            with phases.phase(recipe):
                action(layout, recipe, *arguments)
            installed.append(recipe)
        except TestbedError as error:
            print(f"\n{recipe} is not installed: {error}", flush=True)

    attempt(DATASET, install_shown)
    # both have the same wheels; if this fails, the installation reports it
    with phases.phase("download"), contextlib.suppress(TestbedError):
        recipes.fetch(layout, VENV)
    with ThreadPoolExecutor(max_workers=1) as background:
        venv = background.submit(attempt, VENV, recipes.install_fetched)
        log = recipes.log_of(layout, VENV)
        print(f"\n$ eb {VENV}.eb   # at the same time, its output is in {log}", flush=True)
        attempt(CONTAINER, install_shown, reason=obstacle)
        venv.result()
    if not {CONTAINER, VENV} & set(installed):
        raise TestbedError("Neither the container nor the virtual environment is installed. See the output above.")
    return installed


def install_shown(layout, recipe):
    """Install a recipe, or update it to this tree, and print what EasyBuild prints."""
    with layout.locked(recipe):
        run_shown(layout, recipes.install_command(layout, recipe))
        recipes.note_installed(layout, recipe)


def run_shown(layout, *commands):
    """Print commands, run them in one shell of the testbed, and return their output.

    Raises TestbedError if one of them fails.
    """
    for command in commands:
        print(f"\n$ {command}", flush=True)
    process = subprocess.Popen(
        ["bash", "-c", "\n".join([shell.program_code(layout), "set -e", *commands])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=layout.root,
        # `eb` prints each step when it begins; without this, Python prints to a pipe at its end, errors first
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    output = ""
    for line in process.stdout:
        print(f"  {line}", end="", flush=True)
        output += line
    if process.wait() != 0:
        raise TestbedError(f"`{commands[-1]}` failed with status {process.returncode}. See the output above.")
    return output


def open_shell(layout):
    """Replace this process with an interactive shell of the testbed."""
    startup = layout.root / "shell.rc"
    startup.write_text(f"[ -f ~/.bashrc ] && . ~/.bashrc\n{shell.environment_code(layout)}\nPS1='(testbed) \\w\\$ '\n")
    os.execvp("bash", ["bash", "--rcfile", str(startup), "-i"])


def main(arguments):
    """Run one option; return the exit status."""
    layout = Layout.from_environment(os.environ)
    if arguments == []:
        demonstrate(layout)
    elif arguments == ["--help"]:
        print(__doc__)
    elif arguments == ["--clean"]:
        down(layout)
    elif arguments in (["--env"], ["--shell"]):
        obstacle = up(layout)
        if obstacle:
            print(f"demo: {obstacle}", file=sys.stderr)
        if arguments == ["--shell"]:
            open_shell(layout)
        print(shell.environment_code(layout))
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    again = "Run ./demo again to continue."
    sys.exit(exit_status(lambda: main(sys.argv[1:]), program="demo", again=again))
