"""The edge: reads the environment and the arguments, becomes Python; called by `__main__`."""

# Importing pathlib takes longer than all that this package does.
# ruff: noqa: PTH109, PTH110

import _signal  # built in, where `signal` would import `enum`
import os

from pytorch_launch import LaunchError, caches
from pytorch_launch.environment import variables
from pytorch_launch.nodelist import first_host
from pytorch_launch.script import script_path
from pytorch_launch.world import discover, node_list

STDOUT, STDERR = 1, 2


class PythonError(LaunchError):
    """No Python can be started."""

    status = 127  # a shell's, for a command that it does not find


def main(arguments):
    """Run the command named by the first of `arguments` on the others; return its exit status."""
    command, *arguments = arguments
    program, run = COMMANDS[command]
    if arguments[:1] == ["--help"]:
        from pytorch_launch.usage import USAGE

        return _print(USAGE[program])
    try:
        return run(program, arguments, dict(os.environ))
    except LaunchError as error:
        _complain(program, error)
        return error.status


def get_master(_, arguments, env):
    """Print the first host of the node list that is given, else the step's, else the job's."""
    if len(arguments) > 1:
        raise LaunchError(f"{len(arguments)} arguments for one node list: put it in quotes")
    return _print(first_host(arguments[0] if arguments else node_list(env)) + "\n")


def distributed(program, arguments, env):
    """Become Python with `arguments`, as a rank of the world that `env` tells of."""
    dry_run = arguments[:1] == ["--dry-run"]
    if dry_run:
        arguments = arguments[1:]

    world = discover(env, os.uname().nodename)
    speaks_for_node = world.local_rank == 0
    script = script_path(arguments)
    if script is not None and not os.path.exists(script):
        if speaks_for_node:
            _complain(program, _missing(script))
        return LaunchError.status

    cpus = os.sched_getaffinity(0)
    decided = variables(env, world, mask_cpus=len(cpus), node_cpus=os.cpu_count(), pid=os.getpid())
    key = f"{'local' if world.job is None else world.job}-{world.node}"
    directory, places, warnings = caches.place(env, os.geteuid(), key, create=not dry_run)
    decided.update(places)
    changes = {name: value for name, value in decided.items() if env.get(name) != value}

    if speaks_for_node:
        for warning in warnings:
            _complain(program, warning)
    if env.get("PYTORCH_LAUNCH_VERBOSE", "0") not in ("", "0"):
        from pytorch_launch.report import line

        _print(line(world, env, {**env, **changes}, cpus, directory) + "\n", STDERR)
    if dry_run:
        return _print("".join(f"{name}={changes[name]}\n" for name in sorted(changes)))
    return _become_python(arguments, {**env, **changes})


# What __main__ is told to do, the name of that command, its function.
COMMANDS = {
    "distributed": ("conda-python-distributed", distributed),
    "get-master": ("get-master", get_master),
}


def _become_python(arguments, environment):
    """Replace this process by `python`, or by `python3` where only that exists."""
    # This interpreter ignores these two. Python would not mind to inherit that, but a `python`
    # that is a wrapper in shell would.
    for signal in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(signal, _signal.SIG_DFL)
    for python in ("python", "python3"):
        try:
            os.execvpe(python, [python, *arguments], environment)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise PythonError(f"{python} cannot be started: {error.strerror}") from error
    raise PythonError("no python or python3 on PATH: activate one with WITH_CONDA or WITH_VENV")


def _missing(script):
    return (
        f"no file {script} in {os.getcwd()}: correct the path, or, in a container, make its "
        "directory visible there with SINGULARITY_BIND"
    )


def _print(text, stream=STDOUT):
    """Write `text` at once, so that lines of several ranks stay whole; return success."""
    os.write(stream, os.fsencode(text))
    return 0


def _complain(program, message):
    _print(f"{program}: {message}\n", STDERR)
