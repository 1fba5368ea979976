"""The edge: reads the environment and the arguments, becomes Python; called by `__main__`."""

import _signal  # built in, where `signal` would import `enum`
import posix

from pytorch_launch import LaunchError
from pytorch_launch.isolation import isolate, shadowing
from pytorch_launch.system import become, environment, exists, write

STDOUT, STDERR = 1, 2
#: For the rank that speaks for a node to say its line.
SPEAKER_SECONDS = 5


class PythonError(LaunchError):
    """No Python can be started."""

    status = 127  # a shell's, for a command that it does not find


def main(arguments):
    """Run the command that the first of `arguments` names on the others; return its exit status."""
    program, *arguments = arguments
    try:
        if arguments[:1] == ["--help"]:
            return show_help(program, environment())
        return COMMANDS[program](program, arguments, environment())
    except LaunchError as error:
        complain(program, error)
        return error.status


def show_help(program, env):
    """Print the help of `program`; of the ranks of a world only the first prints it."""
    from pytorch_launch.launchers import discover
    from pytorch_launch.usage import USAGE

    try:
        is_first = discover(env, "").rank == 0
    except LaunchError:
        is_first = True
    return tell(USAGE[program]) if is_first else 0


def simple(program, arguments, env):
    """Become Python with `arguments`, as one process that belongs to no world."""
    changes, warnings = isolate(env)
    for warning in warnings + shadowing(env):
        complain(program, warning)
    return become_python(arguments, changed(env, changes))


def distributed(program, arguments, env):
    """Become Python with `arguments`, as a rank of the world that `env` tells of."""
    from pytorch_launch.rank import Rank
    from pytorch_launch.script import script_path

    options, arguments = own_options(arguments, ("--dry-run", "--virtual-local-rank"))
    rank = Rank(env, virtual="--virtual-local-rank" in options)
    script = script_path(arguments)
    if script is not None and not exists(script):
        if rank.speaks_for_node or not ended_by_others():
            complain(program, _missing(script, env))
        return LaunchError.status

    if "--dry-run" in options:
        rank.decide(create=False)
        report(program, rank)
        return tell("".join(f"{name}={rank.changes[name] or ''}\n" for name in sorted(rank.changes)))
    try:
        rank.check_meeting_point()
    except LaunchError:
        if rank.world.rank != 0 and ended_by_others():
            return LaunchError.status
        raise
    rank.decide()
    rank.warn_if_alone()
    rank.bind()
    report(program, rank)
    return become_python(arguments, changed(env, rank.changes))


def ddp_env(program, arguments, env):
    """Print what `distributed` would set, as lines for `source` or `eval`; a failure fails there too."""
    from pytorch_launch.rank import Rank
    from pytorch_launch.shell import failure, statements

    try:
        if arguments:
            raise LaunchError(f"{arguments[0]}: takes no arguments but --help: use it as `source <(ddp-env)`")
        rank = Rank(env)
        rank.check_meeting_point()
        rank.decide()
        rank.warn_if_alone()
        report(program, rank)
        return tell(statements(rank.changes))
    except LaunchError as error:
        tell(failure(error.status))
        raise


def torchrun(program, arguments, env):
    """Become torchrun on one node of the world that `env` tells of, which has one task on each."""
    from pytorch_launch.elastic import Agent

    agent = Agent(env)
    agent.rank.check_meeting_point()
    agent.rank.warn_if_alone(nodes_only=True)
    report(program, agent.rank)
    return become_python(agent.arguments + arguments, changed(env, agent.changes))


def get_master(_, arguments, env):
    """Print the first host of the node list that is given, else the step's, else the job's."""
    from pytorch_launch.nodelist import first_host
    from pytorch_launch.world import node_list

    if len(arguments) > 1:
        raise LaunchError(f"{len(arguments)} arguments for one node list: put it in quotes")
    if arguments and arguments[0].startswith("-"):
        raise LaunchError(f"{arguments[0]}: no such option; see --help")
    return tell(first_host(arguments[0] if arguments else node_list(env)) + "\n")


COMMANDS = {
    "conda-python-simple": simple,
    "conda-python-distributed": distributed,
    "torchrun-distributed": torchrun,
    "ddp-env": ddp_env,
    "get-master": get_master,
}


def own_options(arguments, names):
    """Those of our own options that `arguments` start with, and the arguments after them."""
    count = 0
    while count < len(arguments) and arguments[count] in names:
        count += 1
    return arguments[:count], arguments[count:]


def changed(env, changes):
    """The environment `env` after `changes`, name to value or None for a variable to be taken away."""
    variables = {**env, **changes}
    for name, value in changes.items():
        if value is None:
            del variables[name]
    return variables


def report(program, rank):
    """Say what went wrong on the way to a rank, and, where it is asked for, what was decided and why."""
    for warning in rank.warnings:
        complain(program, warning)
    verbose = rank.env.get("PYTORCH_LAUNCH_VERBOSE", "0")
    if verbose in ("", "0"):
        return
    from pytorch_launch.report import line, show_devices

    remark(line(rank) + "\n")
    if verbose != "1" and rank.speaks_for_node:
        show_devices(rank.devices.vendor)


def become_python(arguments, variables):
    """Replace this process by `python`, or by `python3` where only that exists."""
    # This interpreter ignores these two. Python would not mind to inherit that, but a `python`
    # that is a wrapper in shell would.
    for signal in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(signal, _signal.SIG_DFL)
    for python in ("python", "python3"):
        try:
            become(python, arguments, variables)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise PythonError(f"{python} cannot be started: {error.strerror}") from error
    raise PythonError("no python or python3 on PATH: activate one with WITH_CONDA or WITH_VENV")


def tell(text):
    """Write `text` on standard output and return success, the exit status."""
    try:
        write(STDOUT, text)
    except OSError as error:
        raise LaunchError(f"standard output cannot be written to: {error.strerror}") from error
    return 0


def complain(program, message):
    """Write one line of error or warning."""
    remark(f"{program}: {message}\n")


def remark(text):
    """Write `text` on standard error, or to nobody where that is closed or full: no reason not to go on."""
    try:
        write(STDERR, text)
    except OSError:
        return


def ended_by_others():
    """Whether srun or mpirun ends this rank, for another that failed, before the time for that is over.

    A rank that has nothing to say waits like this: its own end would end the rank that speaks for the node.
    """
    _signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGTERM])
    return _signal.sigtimedwait([_signal.SIGTERM], SPEAKER_SECONDS) is not None


def _missing(script, env):
    try:
        here = posix.getcwd()
    except OSError:
        here = "a working directory that is gone"
    # Apptainer sets both, and reads its own name of BIND first
    binds = [runtime for runtime in ("APPTAINER", "SINGULARITY") if env.get(f"{runtime}_CONTAINER")]
    bind = f"; in this container, bind its directory with {binds[0]}_BIND" if binds else ""
    return f"{script}: no such file in {here}. Check the path{bind}"
