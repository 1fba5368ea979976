# SPDX-License-Identifier: BSD-3-Clause
"""The edge: reads the environment and the arguments, applies the plan, and becomes Python."""

import _signal  # in place of `signal`, see `pytorch_launch`
import posix as os
import sys

from pytorch_launch import NO_PYTHON, LaunchError, Problem, exists, is_on, read
from pytorch_launch.active import bind_line, choose_python, in_container, isolate, shadowing
from pytorch_launch.caches import SUBDIRECTORIES, in_namespace, make_caches, make_dumps, old_locks, plan_dumps
from pytorch_launch.launchers import discover
from pytorch_launch.nodelist import hosts
from pytorch_launch.plan import idle_allocation, make_plan, openmp_binding
from pytorch_launch.topology import cpu_list

STDOUT, STDERR = 1, 2
#: For the rank that reports for others to print its line.
REPORT_GRACE_SECONDS = 5

# Yama's rule for ptrace(2) (Linux, Documentation/admin-guide/LSM/Yama.rst): 1 is the default of the kernel.
PTRACE_SCOPE, ONLY_PARENTS = "/proc/sys/kernel/yama/ptrace_scope", "1"

# These print their own help.
TORCHRUN, LIST_PACKAGES = "torchrun", "list-packages"

ACTIVATE = "activate an environment that has one with WITH_CONDA or WITH_VENV"


def main(arguments):
    """Run the command whose name is the first of `arguments` with the others; return its exit status."""
    program, *arguments = arguments
    encoding = sys.getfilesystemencoding(), "surrogateescape"
    env = {name.decode(*encoding): value.decode(*encoding) for name, value in os.environ.items()}
    try:
        if arguments[:1] == ["--help"] and program not in (TORCHRUN, LIST_PACKAGES):
            from pytorch_launch.report import USAGE

            return write_output(USAGE[program])
        return COMMANDS[program](program, arguments, env)
    except LaunchError as error:
        write_problem(program, error)
        return error.status


def run_simple(program, arguments, env):
    python = choose_python(env)
    changes, warnings = isolate(env)
    for warning in [*warnings, *python.warnings, *([] if python.prefix else shadowing(env)), *old_locks(env)]:
        write_problem(program, warning)
    if env.get("PYTORCH_LAUNCH_VERBOSE", "0") not in ("", "0"):
        write_problem(program, f"Python of {python.prefix or 'the module'}")
    return become_python(arguments, change_environment(env, {**changes, **python.changes}))


def list_packages(program, arguments, env):
    return run_simple(program, [f"{sys.argv[0].rsplit('/', 2)[0]}/pytorch_packages.py", *arguments], env)


def run_torchrun_alone(program, arguments, env):
    """Become the torchrun of the active environment, which a `torchrun` of the image's would not see.

    Without a place to meet it starts a world in each task, which is not what most users expect.
    """
    from pytorch_launch.elastic import meeting_options

    binding = openmp_binding(env)
    for name, value in binding.items():
        fault = f"{name}={value} would bind torchrun and all of its workers to one core, so it is unset"
        write_problem(program, Problem(fault, "use torchrun-distributed, or set it in the script"))
    try:
        world = discover(env, os.uname().nodename)
    except LaunchError:
        world = None  # of a launch that torchrun does not use
    if world and world.rank == 0 and world.size > 1 and not (world.exported or meeting_options(arguments, env)):
        fault = f"each of the {world.size} tasks of {world.source} starts a world of its own"
        write_problem(program, Problem(fault, "for one world use torchrun-distributed, else add --standalone"))
    env = {name: value for name, value in env.items() if name not in binding}
    return run_simple(program, ["-m", "torch.distributed.run", *arguments], env)


def run_distributed(program, arguments, env):
    """Become Python with `arguments`, as a rank of the world that `env` describes."""
    options = []
    while arguments and arguments[0] in ("--dry-run", "--virtual-local-rank"):
        options.append(arguments.pop(0))
    is_dry = "--dry-run" in options
    try:
        plan = plan_dumps(make_plan(env, virtual="--virtual-local-rank" in options))
        script = script_path(arguments)
        if script in STDIN and not is_dry and gets_no_input(plan.world):
            raise LaunchError(
                f"standard input of rank {plan.world.rank} is empty: the launcher passes it to rank 0 only",
                "start a script from its file, or a module with -m",
                rank=plan.world.rank - 1,  # rank 1 reports it
            )
        if script not in (None, *STDIN) and not exists(script):
            raise LaunchError(*missing(script, env), rank=plan.world.local_rank)
        if is_dry:
            report(program, plan)
            return write_output("".join(f"{name}={plan.changes[name] or ''}\n" for name in sorted(plan.changes)))
        plan = apply(program, plan)
    except LaunchError as error:
        if not is_dry and error.rank != 0 and is_ended_by_others():
            return error.status
        raise
    return become_python(arguments, change_environment(env, plan.changes))


# Options of python(1) without a script after them: code, a module, or a text that Python prints; and those with a
# value, attached or as the next argument.
NO_SCRIPT, TAKES_VALUE = ("c", "m", "h", "V", "?"), ("W", "X")
#: Names of standard input.
STDIN = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")


def script_path(arguments):
    """The path of the script in the arguments of Python, `-` for standard input, None for code or a module."""
    words = iter(arguments)
    for word in words:
        if word == "-" or not word.startswith("-"):
            return word
        if word == "--":
            return next(words, "-")
        # the first option in the word that takes the rest of it: `-uXdev` is X and dev, `-um` is m, `-uB` has none
        start = next((at for at, letter in enumerate(word) if letter in NO_SCRIPT + TAKES_VALUE), None)
        if word.startswith("--") or (start is not None and word[start] in NO_SCRIPT):
            return None
        if start == len(word) - 1:
            next(words, None)
    return "-"


def gets_no_input(world):
    """Whether the launcher keeps this rank's standard input empty: Open MPI, PALS and MPICH pass theirs to rank 0.

    MPICH opens a pipe on the others, in which Intel MPI's `-s all` writes.
    """
    if world.rank == 0:
        return False
    try:
        if os.fstat(0).st_rdev == os.makedev(1, 3):  # /dev/null (Linux, Documentation/admin-guide/devices.txt)
            return True
    except OSError:
        return True
    if world.source != "MPICH":
        return False
    from select import select

    return not select([0], [], [], 1)[0]


def missing(script, env):
    """What is wrong, and what to do, where the file of a script is not there."""
    from os.path import dirname, realpath

    directory = dirname(realpath(script))
    if not in_container(env) or exists(directory):
        return f"{script}: no such file in {os.readlink('/proc/self/cwd')}", "Check the path"
    return f"{script}: its directory, {directory}, is not visible in this image", bind_line(env, directory)


def print_variables(program, arguments, env):
    """Print what `run_distributed` would set, as lines for `source` or `eval`, which an error fails too."""
    from pytorch_launch.report import statements

    try:
        if arguments:
            raise LaunchError(f"{arguments[0]}: unknown argument", "use it without arguments: `source <(ddp-env)`")
        return write_output(statements(apply(program, plan_dumps(make_plan(env).replace(bind=None))).changes))
    except LaunchError as error:
        # ends `source` with this status, without ending the shell; `launch.bash` has the same
        write_output(f"return {error.status} 2>/dev/null || (exit {error.status})\n")
        raise


def run_torchrun(program, arguments, env):
    """Become torchrun on one node of the world that `env` describes, which has one task on each."""
    from pytorch_launch.elastic import known_marks, make_agent_plan

    plan, options = make_agent_plan(make_plan(env, known=known_marks(arguments, env)), arguments)
    plan = apply(program, plan, starts_all_of_node=True)
    return become_python(options + arguments, change_environment(env, plan.changes))


def print_master(_, arguments, env):
    """Print the first host of the given node list, by default that of the step, else of the job."""
    from pytorch_launch.launchers.slurm import master

    if len(arguments) > 1 or "".join(arguments).startswith("-"):
        raise LaunchError(f"{' '.join(arguments)}: expected one node list, in quotes", "see --help")
    return write_output((hosts(arguments[0])[0] if arguments else master(env)) + "\n")


COMMANDS = {
    "conda-python-simple": run_simple,
    "conda-python-distributed": run_distributed,
    "torchrun-distributed": run_torchrun,
    "ddp-env": print_variables,
    "get-master": print_master,
    TORCHRUN: run_torchrun_alone,
    LIST_PACKAGES: list_packages,
}


def apply(program, plan, *, starts_all_of_node=False):
    """Claim the port, make directories, bind this process, and report; return the Plan with the results.

    Raises LaunchError, before anything is made.
    """
    if plan.place is not None and plan.world.size > 1:  # a world of one has no other rank to lose
        from pytorch_launch.claim import hold_port

        hold_port(plan.place, plan.world, plan.launch)
    if plan.dumps is not None:
        plan = make_dumps(plan)
    chosen = SUBDIRECTORIES if plan.caches else ()
    variables = {name: plan.changes[name] for name in chosen if plan.changes.get(name)}
    caches, used, problems = make_caches(plan.caches, variables)
    changes = {**plan.changes, **dict.fromkeys(variables)}  # not those that another launch has exported
    warnings = [*plan.warnings, *(problems if plan.world.local_rank == 0 else ())]
    try:
        if plan.bind is not None:
            os.sched_setaffinity(0, plan.bind)
    except OSError as error:
        fault = f"cannot bind to CPUs {cpu_list(plan.bind)}: {error.strerror}"
        warnings.append(Problem(fault, "this rank keeps its mask"))
    if plan.world.rank == 0:
        warnings += old_locks(plan.env) + idle_allocation(plan.world, starts_all_of_node)
    plan = plan.replace(caches=caches, changes={**changes, **used}, warnings=warnings)
    report(program, plan)
    return plan


def change_environment(env, changes):
    return {name: value for name, value in {**env, **changes}.items() if value is not None}


def report(program, plan):
    """Print the warnings of `plan`, and the line of its decisions if the user asks for it."""
    for warning in plan.warnings:
        write_problem(program, warning)
    if plan.env.get("PYTORCH_LAUNCH_VERBOSE", "0") not in ("", "0"):
        from pytorch_launch.report import line

        write_output(line(plan) + "\n", STDERR)


def become_python(arguments, variables):
    """Replace this process by `python`, or by `python3` if there is no `python`."""
    # Python itself would start the same with the signals that this one ignores; a `python` that is a wrapper would not
    for signal in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(signal, _signal.SIG_DFL)
    if is_on(variables, "PYTORCH_LAUNCH_TRACEABLE", "1") and read(PTRACE_SCOPE) == ONLY_PARENTS:
        allow_tracing()
    failed = None
    for python in ("python", "python3"):
        for directory in variables.get("PATH", "/bin:/usr/bin").split(":"):
            path = f"{directory or '.'}/{python}"
            try:
                os.execve(path, [python, *arguments], variables)  # os.execvpe would import `warnings`
            except (FileNotFoundError, NotADirectoryError, PermissionError):  # such as root's own in some images
                continue
            except OSError as error:  # another directory of PATH may have one, as for a shell
                failed = failed or f"{path} cannot be started: {error.strerror}"
    raise LaunchError(failed or "python and python3 not found on PATH", "" if failed else ACTIVATE, status=NO_PYTHON)


def allow_tracing():
    """Permit it beyond the permission's holder, a parent; a Python without `_ctypes` cannot, and the launch continues.

    The permission stays when this process becomes Python, and is not inherited (Linux, security/yama/yama_lsm.c). Other
    users have none (ptrace(2)). In a user namespace the user who made it has all permissions.
    """
    if in_namespace():
        return
    try:
        # in place of `ctypes`, which imports the structures of C as well
        from _ctypes import call_function, dlopen, dlsym

        # PR_SET_PTRACER and PR_SET_PTRACER_ANY, prctl(2); 2 is RTLD_NOW
        call_function(dlsym(dlopen(None, 2), "prctl"), (0x59616D61, -1, 0, 0, 0))
    except (ImportError, OSError, AttributeError, TypeError):
        return


def write_problem(program, message):
    write_output(f"{program}: {message}\n", STDERR)


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
    _signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGTERM])
    return _signal.sigtimedwait([_signal.SIGTERM], REPORT_GRACE_SECONDS) is not None
