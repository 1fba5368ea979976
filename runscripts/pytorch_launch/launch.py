# SPDX-License-Identifier: BSD-3-Clause
"""The edge: reads the environment and the arguments, applies the plan, and becomes Python."""

import os
import sys

from pytorch_launch import NO_PYTHON, LaunchError, Problem, exists, is_on, printable, read
from pytorch_launch.active import choose_python
from pytorch_launch.caches import make_caches
from pytorch_launch.container import bind_line, check_directory, in_container
from pytorch_launch.flight import make_dumps
from pytorch_launch.isolation import isolate, shadowing
from pytorch_launch.launchers import submit_directory
from pytorch_launch.launchers.discovery import discover
from pytorch_launch.nodelist import hosts
from pytorch_launch.openmp import openmp_binding
from pytorch_launch.plan import idle_allocation, is_verbose, make_plan
from pytorch_launch.private import in_user_namespace
from pytorch_launch.topology import cpu_list

STDOUT = 1
STDERR = 2
#: For the rank that reports for others to print its line.
REPORT_GRACE_SECONDS = 5

# Yama's rule for ptrace(2) (Linux, Documentation/admin-guide/LSM/Yama.rst): 1 is the default of the kernel.
PTRACE_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
ONLY_PARENTS = "1"

# These print their own help.
TORCHRUN = "torchrun"
LIST_PACKAGES = "list-packages"

#: Options of conda-python-distributed itself.
DRY_RUN = "--dry-run"
VIRTUAL_LOCAL_RANK = "--virtual-local-rank"

ACTIVATE = "activate an environment that has one with WITH_CONDA or WITH_VENV"


def main(arguments):
    """Run the command whose name is the first of `arguments` with the others; return its exit status."""
    program, *arguments = arguments
    env = dict(os.environ)
    try:
        if arguments[:1] == ["--help"] and program not in (TORCHRUN, LIST_PACKAGES):
            from pytorch_launch.report import USAGE

            return write_output(USAGE[program])
        return COMMANDS[program](program, arguments, env)
    except LaunchError as error:
        write_problem(program, error)
        return error.status


def run_simple(program, arguments, env):
    """Become Python outside any world."""
    check_directory(env, submit_directory(env))
    python = choose_python(env)
    changes, warnings = isolate(env)
    warnings = [*warnings, *python.warnings]
    if python.prefix is None:
        warnings += shadowing(env)
    for warning in warnings:
        write_problem(program, warning)
    if is_verbose(env):
        write_problem(program, f"Python of {python.prefix or 'the module'}")
    return become_python(arguments, change_environment(env, {**changes, **python.changes}))


def list_packages(program, arguments, env):
    runscripts = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return run_simple(program, [f"{runscripts}/pytorch_packages.py", *arguments], env)


def run_torchrun_alone(program, arguments, env):
    """Become the torchrun of the active environment, which a `torchrun` of the image's would not see.

    Without a place to meet it starts a world in each task, which is not what most users expect.
    """
    from pytorch_launch.elastic import read_options

    binding = openmp_binding(env)
    for name, value in binding.items():
        fault = f"{name}={value} would bind torchrun and all of its workers to one core, so it is unset"
        write_problem(program, Problem(fault, "use torchrun-distributed, or set it in the script"))
    try:
        world = discover(env, os.uname().nodename)
    except LaunchError:
        world = None  # of a launch that torchrun does not use
    is_several = world is not None and world.rank == 0 and world.size > 1 and not world.exported
    if is_several and not read_options(arguments, env).decides_meeting:
        fault = f"each of the {world.size} tasks of {world.source} starts a world of its own"
        write_problem(program, Problem(fault, "for one world use torchrun-distributed, else add --standalone"))
    env = {name: value for name, value in env.items() if name not in binding}
    return run_simple(program, ["-m", "torch.distributed.run", *arguments], env)


def run_distributed(program, arguments, env):
    """Become Python with `arguments`, as a rank of the world that `env` describes."""
    options = []
    while arguments and arguments[0] in (DRY_RUN, VIRTUAL_LOCAL_RANK):
        options.append(arguments.pop(0))
    is_dry = DRY_RUN in options
    try:
        plan = make_plan(env, virtual=VIRTUAL_LOCAL_RANK in options)
        check_script(arguments, env, plan.world)
        if is_dry:
            report(program, plan, env)
            lines = [f"{name}={printable(plan.changes[name] or '')}\n" for name in sorted(plan.changes)]
            return write_output("".join(lines))
        plan = apply(program, plan, env)
    except LaunchError as error:
        if not is_dry and error.rank != 0 and is_ended_by_others():
            return error.status
        raise
    return become_python(arguments, change_environment(env, plan.changes))


def check_script(arguments, env, world):
    """Raise LaunchError if the script in the arguments of Python is not there."""
    script = script_path(arguments)
    if script is None or exists(script):
        return
    try:
        directory = os.path.dirname(os.path.realpath(script))
    except OSError as error:
        fault = f"{script}: the working directory has been deleted"
        raise LaunchError(fault, "Change to another one", rank=world.local_rank) from error
    if not in_container(env) or exists(directory):
        raise LaunchError(f"{script}: no such file in {os.getcwd()}", "Check the path", rank=world.local_rank)
    fault = f"{script}: its directory, {directory}, is not visible in this image"
    raise LaunchError(fault, bind_line(env, directory), rank=world.local_rank)


def script_path(arguments):
    """The path of a script `*.py` in the arguments of Python; None if none is seen, as of code or a module."""
    for word in arguments:
        if word == "-" or not word.startswith("-"):
            return word if word.endswith(".py") else None
        if "c" in word or "m" in word:  # of `-c` and `-m`, also in `-um`
            return None
    return None


def print_variables(program, arguments, env):
    """Print what `run_distributed` would set, as lines for `source` or `eval`, which an error fails too."""
    from pytorch_launch.report import statements

    try:
        if arguments:
            raise LaunchError(f"{arguments[0]}: unknown argument", "use it without arguments: `source <(ddp-env)`")
        plan = make_plan(env)
        plan = apply(program, plan._replace(placement=plan.placement._replace(bind=None)), env)
        return write_output(statements(plan.changes))
    except LaunchError as error:
        # ends `source` with this status, without ending the shell; `launch.bash` has the same
        write_output(f"return {error.status} 2>/dev/null || (exit {error.status})\n")
        raise


def run_torchrun(program, arguments, env):
    """Become torchrun on one node of the world that `env` describes, which has one task on each."""
    from pytorch_launch.elastic import make_agent_plan, read_options

    plan, options = make_agent_plan(env, make_plan(env), read_options(arguments, env))
    plan = apply(program, plan, env, starts_all_of_node=True)
    return become_python(options + arguments, change_environment(env, plan.changes))


def print_master(_, arguments, env):
    """Print the first host of the given node list, by default that of the step, else of the job."""
    from pytorch_launch.launchers.slurm import first_host

    if len(arguments) > 1 or "".join(arguments).startswith("-"):
        raise LaunchError(f"{' '.join(arguments)}: expected one node list, in quotes", "see --help")
    if arguments:
        return write_output(hosts(arguments[0])[0] + "\n")
    return write_output(first_host(env) + "\n")


COMMANDS = {
    "conda-python-simple": run_simple,
    "conda-python-distributed": run_distributed,
    "torchrun-distributed": run_torchrun,
    "ddp-env": print_variables,
    "get-master": print_master,
    TORCHRUN: run_torchrun_alone,
    LIST_PACKAGES: list_packages,
}


def apply(program, plan, env, *, starts_all_of_node=False):
    """Hold the port, make directories, bind this process, and report; return the Plan with the results.

    Raises LaunchError, before anything is made.
    """
    world = plan.world
    if world.size > 1 and not world.exported:
        from pytorch_launch.claim import hold_port

        # the second if others have the first; TMPDIR may be another directory in each job
        at_home = f"{env.get('HOME', '')}/.cache/pytorch-ports-{world.node}"
        hold_port(world, plan.place, (f"/tmp/pytorch-{os.geteuid()}", at_home))  # noqa: S108  (it is private)
    changes = dict(plan.changes)
    warnings = list(plan.warnings)
    caches = plan.caches
    if caches is not None:
        caches = make_caches(caches)
        changes.update(caches.variables)
        if world.local_rank == 0:
            warnings += caches.warnings
    for name in make_dumps(plan.dumps):
        changes.pop(name, None)
    warnings += bind_process(plan.placement.bind)
    if world.rank == 0:
        warnings += idle_allocation(world, starts_all_of_node)
    plan = plan._replace(caches=caches, changes=changes, warnings=warnings)
    report(program, plan, env)
    return plan


def bind_process(cpus):
    """Bind this process to `cpus`, None for none; return Problems."""
    if cpus is None:
        return []
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        fault = f"cannot bind to CPUs {cpu_list(cpus)}: {error.strerror}"
        return [Problem(fault, "this rank keeps its mask")]
    return []


def change_environment(env, changes):
    return {name: value for name, value in {**env, **changes}.items() if value is not None}


def report(program, plan, env):
    """Print the warnings of `plan`, and the line of its decisions if the user asks for it."""
    for warning in plan.warnings:
        write_problem(program, warning)
    if is_verbose(env):
        from pytorch_launch.report import line

        write_output(printable(line(plan, env)) + "\n", STDERR)


def become_python(arguments, variables):
    """Replace this process by `python`, or by `python3` if there is no `python`."""
    import _signal  # `signal` costs as much as all of this package

    # Python itself would start the same with the signals that this one ignores; a `python` that is a wrapper would not
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)
    if is_on(variables, "PYTORCH_LAUNCH_TRACEABLE", "1") and read(PTRACE_SCOPE) == ONLY_PARENTS:
        allow_tracing()
    failed = None
    for python in ("python", "python3"):
        for directory in variables.get("PATH", "/bin:/usr/bin").split(":"):
            path = f"{directory or '.'}/{python}"
            try:
                os.execve(path, [python, *arguments], variables)
            except (FileNotFoundError, NotADirectoryError, PermissionError):  # such as root's own in some images
                continue
            except OSError as error:  # another directory of PATH may have one, as for a shell
                failed = failed or f"{path} cannot be started: {error.strerror}"
    if failed:
        raise LaunchError(failed, status=NO_PYTHON)
    raise LaunchError("python and python3 not found on PATH", ACTIVATE, status=NO_PYTHON)


def allow_tracing():
    """Permit it beyond the permission's holder, a parent; a Python without `_ctypes` cannot, and the launch continues.

    The permission stays when this process becomes Python, and is not inherited (Linux, security/yama/yama_lsm.c). Other
    users have none (ptrace(2)). In a user namespace the user who made it has all permissions.
    """
    if in_user_namespace():
        return
    try:
        # in place of `ctypes`, which imports the structures of C as well
        from _ctypes import call_function, dlopen, dlsym

        # PR_SET_PTRACER and PR_SET_PTRACER_ANY, prctl(2); 2 is RTLD_NOW
        call_function(dlsym(dlopen(None, 2), "prctl"), (0x59616D61, -1, 0, 0, 0))
    except (ImportError, OSError, AttributeError, TypeError):
        return


def write_problem(program, message):
    """Write a line to standard error, with control characters of variables and files escaped."""
    write_output(printable(f"{program}: {message}") + "\n", STDERR)


def write_output(text, stream=STDOUT):
    """Write `text` at once, so that lines of several ranks stay intact; return success, the exit status.

    If standard error is closed or full, the launch continues.
    """
    rest = text.encode(sys.getfilesystemencoding(), "surrogateescape")
    try:
        while rest:
            rest = rest[os.write(stream, rest) :]
    except OSError as error:
        if stream == STDOUT:
            raise LaunchError(f"cannot write to standard output: {error.strerror}") from error
    return 0


def is_ended_by_others():
    """Whether srun or mpirun ends this rank, because another one failed, within REPORT_GRACE_SECONDS.

    A rank that does not report waits like this: if it exited first, it would end the rank that reports.
    """
    import _signal

    _signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGTERM])
    return _signal.sigtimedwait([_signal.SIGTERM], REPORT_GRACE_SECONDS) is not None
