"""The commands that start one keeper on each node of a job."""

import base64
import json
import os
import sys
import zlib

from pytorch_stage import StageError
from pytorch_stage.sources import files_of_keeper, texts

LOADER = "pytorch_stage/loader.py"
#: Slurm's variables that lead to the job; the others describe the step or the script that starts the keepers, and
#: srun would take them as options.
OF_THE_JOB = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTER_NAME")


def start_command(env, launcher, task="--keeper"):
    """The command that starts a keeper on each node; `launcher` is the user's, if any. Raises StageError."""
    keeper = [python(), "-I", "-S", "-c", texts([LOADER])[LOADER], task]
    if launcher:
        return [*launcher, *keeper]
    if not env.get("SLURM_JOB_ID"):
        raise StageError("no Slurm job: name the command that starts one process on each node of the job, for example "
                         "`pytorch-stage -- mpirun --map-by ppr:1:node`")  # fmt: skip
    nodes = env.get("SLURM_JOB_NUM_NODES") or env.get("SLURM_NNODES") or "1"
    # beside the job's other steps, on cores that they use
    return ["srun", f"--jobid={env['SLURM_JOB_ID']}", "--overlap", f"--nodes={nodes}", f"--ntasks={nodes}",
            "--ntasks-per-node=1", "--cpu-bind=none", "--mpi=none", "--gres=none", "--input=none", "--quiet",
            "--kill-on-bad-exit=0", "--job-name=pytorch-stage", *keeper]  # fmt: skip


def start_environment(env, launcher):
    """The environment for that command, with the sources of a keeper."""
    sources = json.dumps(texts(files_of_keeper())).encode()
    text = base64.b64encode(zlib.compress(sources)).decode()
    return {**variables_of_job(env, launcher), "PYTORCH_STAGE_SOURCES": text}


def variables_of_job(env, launcher):
    """The variables of the job, without those that are options of srun."""
    if launcher:
        return dict(env)
    return {name: value for name, value in env.items()
            if not name.startswith(("SLURM_", "SLURMD_", "SRUN_", "PMI")) or name in OF_THE_JOB}  # fmt: skip


def python():
    """The host's Python, on the nodes too."""
    return "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable


def first_nodes(env):
    """Host names of the job by which this host finds its address for them."""
    from pytorch_launch import LaunchError
    from pytorch_launch.nodelist import first_host

    try:
        return [first_host(env["SLURM_JOB_NODELIST"])] if env.get("SLURM_JOB_NODELIST") else []
    except LaunchError:
        return []
