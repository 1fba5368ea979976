"""Submits the job scripts of payload/jobs on the testbed, without what only their own systems have."""

import re
from pathlib import Path

JOBS = Path(__file__).resolve().parents[2] / "payload" / "jobs"

#: Options of sbatch, which take precedence over those in the script: two nodes with two ranks each, on CPUs.
HERE = "--partition=batch --nodes=2 --ntasks-per-node=2 --cpus-per-task=1 --gpus-per-node=0 --mem=0 --constraint=''"
#: What no option can replace: Shifter's options of sbatch, and Frontier's options of srun.
ONLY_THERE = "|".join(
    [
        r"#SBATCH --(image|module)=.*\n",
        r"module load rccl-net-plugin.*\n",
        r" -n16(?= )| -c7 --gpus-per-task=1 --gpu-bind=closest| --gpu\b",
    ]
)


def without_hardware(script):
    """Return the text of a job script (path below payload/jobs) without what needs Frontier's hardware or Shifter."""
    return re.sub(ONLY_THERE, "", (JOBS / script).read_text())


def submission(script, options=""):
    """Return bash code that submits a job script and waits for its end; if the job fails, prints its output and fails.

    `sbatch --wait` would poll only every ten seconds.
    """
    return f"""job=$(sbatch --parsable {options} {script}) || exit
while state=$(scontrol show job "$job") && [[ $state =~ JobState=(PENDING|CONFIGURING|RUNNING|COMPLETING) ]]; do
  sleep 0.3
done
[[ $state == *JobState=COMPLETED* ]] || {{ tail -n +1 output_* *.out logs/* >&2 2>/dev/null; exit 1; }}"""


def written(directory):
    """Return the output files of a job in its directory and in logs/: name -> text."""
    files = [*directory.glob("output_*.txt"), *directory.glob("*.out"), *directory.glob("logs/*")]
    return {path.name: path.read_text() for path in files}
