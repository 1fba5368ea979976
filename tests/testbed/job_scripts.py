"""The job scripts of payload/jobs, as the testbed can run them: what only the systems have is taken out of a copy."""

import re
from pathlib import Path

JOBS = Path(__file__).resolve().parents[2] / "payload" / "jobs"

#: Directives of GPUs, sites and fabrics.
ONLY_THERE = r"#SBATCH (--gpus|--partition|--mem|--image|--module|--network|-p |-q |-C |--cpus-per-task).*\n"
#: Two nodes of two ranks in place of the system's, and CPUs.
HERE = [
    (ONLY_THERE, ""),
    (r"--nodes=4|-N 2|--nodes=2", "--nodes=2"),
    (r"--ntasks-per-node=4", "--ntasks-per-node=2"),
    (r"SLURM_NNODES \* 8", "SLURM_NNODES * 2"),
    (r"-n16 -c7 --gpus-per-task=1 --gpu-bind=closest", "-n4"),
    (r" -c7 --gpus-per-task=1 --gpu-bind=closest", ""),
    (r"module load (LUMI/24.03|(openmpi|rccl-net-plugin) .*|nccl)\n", ""),
    (r" --gpu\b| --epochs \d", ""),
    (r"mpirun ", "mpirun.openmpi --allow-run-as-root "),
    (r'(mnist_\w+\.py")', r"\1 --epochs 1"),
]


def adapted(script, layout, modules):
    """Return the text of a job script for the testbed.

    Parameters
    ----------
    script : str
        Its path below payload/jobs.
    layout : Layout
        The testbed's, whose modules the job finds.
    modules : sequence of str
        The modules that take the place of the system's PyTorch and of MNIST; none leaves the first as it is.
    """
    text = (JOBS / script).read_text()
    for pattern, replacement in HERE:
        text = re.sub(pattern, replacement, text)
    for name, module in zip(("PyTorch", "MNIST"), modules):
        if module:
            text = re.sub(rf"module load {name}\S*", f"module load {module}", text)
    # where a site's users find its modules, whatever the job inherits
    return re.sub(r"^module load", f"module use {layout.modules}\nmodule load", text, count=1, flags=re.MULTILINE)


def with_digits(text):
    """Have a job train on the digits set, which it draws itself: what takes its time is not what is looked at."""
    return re.sub(r"^(module load MNIST\S*)$", r"\1\nexport MNIST_ROOT=", text, flags=re.MULTILINE)


def submission(script, options=""):
    """Bash that runs a job script to its end; if it fails, what it wrote is on standard error.

    `sbatch --wait` would do the same, but looks only every ten seconds.
    """
    return f"""job=$(sbatch --parsable {options} {script}) || exit
while state=$(scontrol show job "$job") && [[ $state =~ JobState=(PENDING|CONFIGURING|RUNNING|COMPLETING) ]]; do
  sleep 0.3
done
[[ $state == *JobState=COMPLETED* ]] || {{ tail -n +1 output_* *.out logs/* >&2 2>/dev/null; exit 1; }}"""


def written(directory):
    """What a job left in its directory and in logs/ there, by file name."""
    files = [*directory.glob("output_*.txt"), *directory.glob("*.out"), *directory.glob("logs/*")]
    return {path.name: path.read_text() for path in files}
