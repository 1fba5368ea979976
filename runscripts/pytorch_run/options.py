# SPDX-License-Identifier: BSD-3-Clause
"""The command line of pytorch-run: its own options, those of srun, and the command.

>>> parse(["--spare", "1", "-N2", "--ntasks-per-node=2", "--", "hostname"]).srun
['--ntasks-per-node=2']
"""

from collections import namedtuple

from pytorch_launch import LaunchError, is_number

RETRIES = 3

HELP = f"""\
usage: pytorch-run [--spare K] [--retries R] [--min-nodes M] [--no-preflight] [options of srun] -- COMMAND ...

Runs COMMAND with srun on some nodes of this allocation. If a node fails, it runs it again on those that are left:

    salloc --no-kill -N3
    pytorch-run --spare 1 -N2 --ntasks-per-node=2 -- conda-python-distributed train.py

The job needs --no-kill (salloc, sbatch): without it, Slurm ends the job when one of its nodes fails. The program
must resume from its last checkpoint. Its own failure is not repeated. A node has failed if Slurm reports it, if it
does not answer, or if a check of pytorch-doctor fails there.

  --spare K       keep K nodes of the allocation in reserve (default: those that -N leaves)
  --retries R     run again at most R times (default: {RETRIES})
  --min-nodes M   if no spare node is left, continue with fewer nodes than -N, at least M (default: -N, or the
                  smaller number of torchrun-distributed --nnodes=M:N)
  --no-preflight  do not check the nodes before the first run
  --help          print this text
(-w is not possible, as pytorch-run chooses the nodes; nodes of -x are not used)

The exit status is that of the last step.
"""

#: Options of srun(1) that pytorch-run reads: short name, long name, and where it keeps the value.
READ = (
    ("-N", "--nodes", "nodes"),
    ("-n", "--ntasks", "ntasks"),
    ("-x", "--exclude", "exclude"),
    ("-w", "--nodelist", "nodelist"),
    (None, "--spare", "spare"),
    (None, "--retries", "retries"),
    (None, "--min-nodes", "min_nodes"),
)

Options = namedtuple("Options", "spare retries min_nodes preflight nodes ntasks exclude srun command")
Options.__doc__ = """A command line.

`spare`, `nodes`, `ntasks`, `min_nodes`  numbers, None if not given
`retries`, `preflight`                   a number; whether to check nodes first
`exclude`                                a node list or None
`srun`, `command`                        the other options of srun, and the command with its arguments
"""


class OptionError(LaunchError):
    """A command line that cannot be run."""

    def __init__(self, fault, remedy="see pytorch-run --help"):
        super().__init__(fault, remedy)


def parse(arguments):
    """The Options of a command line. Raises OptionError."""
    if "--" not in arguments:
        raise OptionError("no `--` before the command", "write: pytorch-run [options] -- conda-python-distributed ...")
    end = arguments.index("--")
    command = arguments[end + 1 :]
    if not command:
        raise OptionError("no command after `--`")
    values, srun = _take(arguments[:end])
    if "nodelist" in values:
        raise OptionError("-w names nodes, but pytorch-run chooses them", "omit -w, or leave nodes out with -x")
    preflight = "--no-preflight" not in srun
    numbers = {name: _number(name, values.get(name)) for name in ("spare", "nodes", "ntasks", "min_nodes", "retries")}
    if numbers["min_nodes"] is None:
        numbers["min_nodes"] = elastic_minimum(command)
    if numbers["retries"] is None:
        numbers["retries"] = RETRIES
    rest = [option for option in srun if option != "--no-preflight"]
    return Options(preflight=preflight, exclude=values.get("exclude"), srun=rest, command=command, **numbers)


def elastic_minimum(command):
    """M of `torchrun-distributed --nnodes=M:N`, None otherwise."""
    names = [word.rpartition("/")[2] for word in command]
    if "torchrun-distributed" not in names:
        return None
    after = command[names.index("torchrun-distributed") + 1 :]
    for word, following in zip(after, [*after[1:], ""]):
        name, _, value = word.partition("=")
        if name == "--nnodes":
            least, colon, _ = (value or following).partition(":")
            return int(least) if colon and is_number(least) else None
    return None


def _take(arguments):
    """The values of the options in READ, by name, and the other options."""
    values, rest = {}, []
    left = list(arguments)
    while left:
        word = left.pop(0)
        found = _match(word)
        if found is None:
            rest.append(word)
            continue
        name, value = found
        if value is None:
            if not left:
                raise OptionError(f"{word} has no value")
            value = left.pop(0)
        values[name] = value
    return values, rest


def _match(word):
    """The name of the option in READ that `word` is, and its value, None if that is the next word; or None."""
    for short, long, name in READ:
        if word in (short, long):
            return name, None
        if word.startswith(long + "="):
            return name, word[len(long) + 1 :]
        if short and word.startswith(short) and not word.startswith("--"):
            return name, word[len(short) :].lstrip("=")
    return None


def _number(name, text):
    if text is None:
        return None
    if not is_number(text) or (int(text) == 0 and name not in ("spare", "retries")):
        option = {long_name: long for _, long, long_name in READ}[name]
        raise OptionError(f"{option}={text} is not a number of {name.split('_')[-1]}")
    return int(text)
