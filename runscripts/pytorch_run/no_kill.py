"""Finds out whether Slurm keeps a job when one of its nodes fails (--no-kill of salloc and sbatch).

Slurm has no command that shows it: it is an option on the command line, in the script, or in the environment.
"""

import re

from pytorch_launch.system import read_bytes, state_and_parent

from pytorch_run.slurm import query

#: Inputs of sbatch(1) and salloc(1); sbatch passes the environment of its caller on.
VARIABLES = ("SBATCH_NO_KILL", "SALLOC_NO_KILL")
OPTION = re.compile(r"^(-k|--no-kill)$")
IN_SCRIPT = re.compile(r"^#SBATCH\s+(?:.*\s)?(?:-k|--no-kill)(?:\s|$)", re.MULTILINE)
SUBMITTED = re.compile(r"\s(?:-k|--no-kill)(?:\s|$)")
MOST_PARENTS = 64


def is_kept_without_node(env):
    """Whether --no-kill was found for the job."""
    return (
        any(name in env and env[name] != "off" for name in VARIABLES)
        or any(OPTION.match(word) for word in salloc_above())
        or is_in_script(query(["scontrol", "write", "batch_script", env["SLURM_JOB_ID"], "-"], env))
        or is_submitted_with(query(["sacct", "-nPX", "-o", "SubmitLine", "-j", env["SLURM_JOB_ID"]], env))
    )


def is_in_script(lines):
    """Whether a batch script has the option."""
    return bool(lines) and bool(IN_SCRIPT.search("\n".join(lines)))


def is_submitted_with(lines):
    """Whether the line that submitted the job has the option, where Slurm has a database of jobs."""
    return bool(lines) and bool(SUBMITTED.search(lines[0]))


def salloc_above():
    """The arguments of the salloc that started this process, none without one."""
    pid = "self"
    for _ in range(MOST_PARENTS):
        pid = state_and_parent(pid)[1]
        if pid in ("", "0", "1"):
            return []
        words = (read_bytes(f"/proc/{pid}/cmdline") or b"").decode(errors="replace").split("\0")
        if words[0].rpartition("/")[2] == "salloc":
            return words[1:]
    return []
