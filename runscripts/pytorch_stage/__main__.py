"""Usage: source <(pytorch-stage [-- LAUNCHER...])
       export SIF=$(pytorch-stage --print [-- LAUNCHER...])

Copies the image or the packed venv of the loaded module to each node of the job, before `srun`, and removes it when the
job ends. The first form sets the variables that name it (SIF and SIFPYTORCH, or PYTORCH_PACKED); the second prints the
path. If a node has no room, or a copy fails, a message has the reason, and the shared file is used.

  --print       print the path to use
  -- LAUNCHER   the command that starts one process on each node of the job, outside Slurm:
                pytorch-stage -- mpirun --map-by ppr:1:node

  PYTORCH_LAUNCH_STAGE_DIR  the directory on the nodes; by default TMPDIR, /tmp or /dev/shm, the first with enough room
  PYTORCH_LAUNCH_STAGE=1    the commands of the module stage by themselves in a Slurm job
  PYTORCH_LAUNCH_STAGE=sbcast
                            as 1; Slurm's sbcast copies the file, also for this command
"""

import os
import shlex
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # `python -I` leaves it out

from pytorch_stage import DamagedError, StageError  # noqa: E402  (from the directory above)
from pytorch_stage.front import obtain  # noqa: E402
from pytorch_stage.item import loaded_item  # noqa: E402


def main(arguments):
    """Run the command; return the exit status."""
    if arguments == ["--rank"]:
        from pytorch_stage.rank import DAMAGED, stage

        path = stage(os.environ, say)
        print(path or os.environ.get("SIFPYTORCH", ""))
        return 1 if path == DAMAGED else 0
    options, _, launcher = split(arguments)
    if options == ["--help"]:
        print(__doc__, end="")
        return 0
    if options not in ([], ["--print"]):
        say(f"unknown arguments '{' '.join(options)}'. See --help")
        return 2
    return run(bool(options), launcher)


def split(arguments):
    """The arguments before `--`, that word, and those after it."""
    place = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:place], arguments[place : place + 1], arguments[place + 1 :]


def run(is_plain, launcher):
    """Stage, and print the path or the lines to source; the shared file if that fails."""
    item, env = None, dict(os.environ)
    env.setdefault("PYTORCH_STAGE_JOB", env.get("SLURM_JOB_ID") or os.urandom(8).hex())
    try:
        item = loaded_item(env)
        path = obtain(item, env, launcher, say)
    except StageError as error:
        if item is None or isinstance(error, DamagedError):
            say(f"{error}.")
            if not is_plain:
                print("return 1 2>/dev/null || (exit 1)")  # the status of `source`
            return 1
        say(f"{error}. Using the shared {item.path}")
        path = item.path
    if is_plain:
        print(path)
    elif "SIF" in item.variables:
        print(f"export SIF={shlex.quote(path)} SIFPYTORCH={shlex.quote(path)}")
    elif path != item.path:
        # ranks ask the process on their node for its copy
        how = "sbcast" if env.get("PYTORCH_LAUNCH_STAGE") == "sbcast" else 1
        print(f"export PYTORCH_LAUNCH_STAGE={how} PYTORCH_STAGE_JOB={env['PYTORCH_STAGE_JOB']}")
    return 0


def say(text):
    """Print a line on standard error."""
    print(f"pytorch-stage: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
