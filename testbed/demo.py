"""Usage: ./demo [--env | --shell | --clean | --help]

From a fresh machine to PyTorch training on two nodes: installs what is missing, starts a throw-away
Slurm cluster on this machine, and runs the three commands of the README on it.

--env    print shell code: eval "$(./demo --env)" gives module, eb, srun, singularity in your shell
--shell  open such a shell
--clean  stop the cluster and remove everything that was made

All of it lives in one directory: $PYTORCH_TESTBED, or .testbed in this tree.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])
from testbed import recipes, shell  # noqa: E402
from testbed.layout import Layout, TestbedError  # noqa: E402
from testbed.lifecycle import down, up  # noqa: E402
from testbed.progress import end_like_interrupt, relay, step  # noqa: E402
from testbed.recipes import CONTAINER, DATASET, VENV  # noqa: E402

LAUNCH = "srun -N2 --ntasks-per-node=2 {enter}conda-python-distributed -u $PAYLOAD/mnist_ddp.py"


def demonstrate(layout):
    """Run the README's commands one after the other and sum up what they showed."""
    start = time.monotonic()
    print("1. The testbed: Slurm, Lmod, EasyBuild, Apptainer", flush=True)
    obstacle = up(layout)

    print("\n2. Install (a few minutes the first time)", flush=True)
    with layout.locked(DATASET):
        with_dataset = install_dataset(layout)
    recipe = install_pytorch(layout, obstacle)

    print("\n3. Load and launch: 4 ranks on 2 nodes", flush=True)
    launch = LAUNCH.format(enter="singularity exec $SIF " if recipe == CONTAINER else "")
    commands = [f"module load {recipes.module(recipe)}", launch]
    if with_dataset:
        commands = [f"module load {recipes.module(DATASET)}", commands[0], f"{launch} --epochs 1"]
    output = run_shown(layout, *commands)
    accuracy = re.search(r"test accuracy: ([\d.]+) %", output)
    speed = re.findall(r"images/s (\d+)", output)
    if not accuracy or not speed:
        raise TestbedError("The training ended without an accuracy; its output is above.")
    lines = "\n      ".join(commands)
    print(f"""
Done in {time.monotonic() - start:.0f} s: test accuracy {accuracy[1]} %, {speed[-1]} images/s on 2 nodes.

Where things are
  software and modules   {layout.easybuild}
  cluster and its logs   {layout.cluster}
Go on
  eval "$(./demo --env)"   in your own shell, then in any directory:
      {lines}
  ./demo --shell           the same in a new shell
  ./demo --clean           stop the cluster, remove {layout.root}""")


def install_dataset(layout):
    """Install MNIST from the source path or the network; return whether that worked."""
    command = recipes.install_command(layout, DATASET)
    print(f"\n$ {command}", flush=True)
    with step("looking for the MNIST files"):
        result = subprocess.run(
            ["bash", "-c", f"{shell.environment_code(layout)}\n{command}"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=layout.root, check=False,
        )  # fmt: skip
    if result.returncode == 0:
        recipes.note_installed(layout, DATASET)
        return True
    reason = next((line for line in result.stderr.splitlines() if line.startswith("ERROR")), "no reason given")
    print(f"  {reason[:200]} ...\n  So the training below makes a small digits set instead.")
    return False


def install_pytorch(layout, obstacle):
    """Install PyTorch as a container and as a virtual environment; return the recipe to go on with.

    One of the two is enough: where no container can be had, or no Python that the venv is locked for.
    """
    if obstacle:
        print(f"\nNo containers here, so the virtual environment it is: {obstacle}")
        install(layout, VENV)
        return VENV
    try:
        install(layout, CONTAINER)
    except TestbedError as error:
        print(f"\nThe container could not be installed ({error}) The virtual environment it is.")
        install(layout, VENV)
        return VENV
    try:
        install(layout, VENV)
    except TestbedError as error:
        print(f"\nThe virtual environment could not be installed ({error}) The container is enough.")
    return CONTAINER


def install(layout, recipe):
    """Install a recipe, or bring it up to date with this tree."""
    with layout.locked(recipe):
        run_shown(layout, recipes.install_command(layout, recipe))
        recipes.note_installed(layout, recipe)


def run_shown(layout, *commands):
    """Show commands, run them in one shell of the testbed, and return their output.

    Raises TestbedError if they fail.
    """
    for command in commands:
        print(f"\n$ {command}", flush=True)
    process = subprocess.Popen(
        ["bash", "-c", "\n".join([shell.environment_code(layout), "set -e", *commands])],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=layout.root,
        # so that `eb` prints each step as it begins: into a pipe Python would print all at its end, errors first
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    output = relay(process.stdout)
    if process.wait() != 0:
        raise TestbedError(f"`{commands[-1]}` ended with status {process.returncode}; see above.")
    return output


def open_shell(layout):
    """Replace this process by an interactive shell on the testbed."""
    startup = layout.root / "shell.rc"
    startup.write_text(f"[ -f ~/.bashrc ] && . ~/.bashrc\n{shell.environment_code(layout)}\nPS1='(testbed) \\w\\$ '\n")
    os.execvp("bash", ["bash", "--rcfile", str(startup), "-i"])


def main(arguments):
    """Do what the one option asks for; return the exit status."""
    end_like_interrupt()
    layout = Layout.from_environment(os.environ)
    option = arguments[0] if arguments else ""
    if len(arguments) > 1 or option not in ("", "--env", "--shell", "--clean", "--help"):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        if option == "":
            demonstrate(layout)
        elif option == "--help":
            print(__doc__)
        elif option == "--clean":
            down(layout)
        else:
            obstacle = up(layout)
            if obstacle:
                print(f"No containers here: {obstacle}", file=sys.stderr)
            if option == "--shell":
                open_shell(layout)
            print(shell.environment_code(layout))
    except TestbedError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; ./demo goes on where it stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
