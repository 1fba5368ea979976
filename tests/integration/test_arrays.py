"""`pytorch-run` and `pytorch-stacks` in arrays of a real Slurm, by the names that it gives."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.testbed
RUNSCRIPTS = Path(__file__).resolve().parents[2] / "runscripts"
RUN = f"{RUNSCRIPTS}/pytorch-run --no-preflight"
STACKS = f"{RUNSCRIPTS}/pytorch-stacks"
RANKS = """bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_STEP_NUM_TASKS PYTORCH_LAUNCH_ID=$SLURM_JOB_ID \
python3 -c "import time; time.sleep(600)"'"""
#: Waits until the ranks of a job are there.
WAIT = "for turn in {{1..1000}}; do {} {} 2>&1 | grep -q '{}' && break; sleep 0.2; done\n"


def test_a_run_in_each_element_of_an_array_has_the_elements_node(testbed, work):
    script = f"sbatch --wait --quiet --array=0-1%1 -N1 -n1 -o '{work}/%a' --wrap '{RUN} -- hostname' 2>&1"
    testbed.run(script, cwd=work)
    for element in "01":
        assert "pytorch-run: run 1 on nid00100" in (work / element).read_text()


def test_fewer_tasks_than_nodes_run_on_as_many_nodes(testbed, work):
    done = testbed.run_unchecked(f"salloc -N3 {RUN} -n2 -- bash -c 'echo $SLURM_STEP_NUM_TASKS'", cwd=work)
    assert done.stdout.splitlines() == ["2"] * 2, done.stderr


def test_stacks_of_an_array_and_of_its_elements(testbed, work):
    (work / "job").write_text(f"#!/bin/bash\nsrun {RANKS}\n")
    job = testbed.run("sbatch --parsable --array=0-1 -N1 -n1 -o /dev/null job", cwd=work).strip()
    try:
        testbed.run(WAIT.format(STACKS, job, f"job {job}_1, step 0: 1 rank on 1 node"), cwd=work)
        titles = testbed.run_unchecked(f"{STACKS} {job}; {STACKS} {job}_1.0", cwd=work).stdout.splitlines()
        names = [line.split(",")[0] for line in titles if line.startswith("job ")]
        assert names == [f"job {job}_0", f"job {job}_1", f"job {job}_1"]
    finally:
        testbed.run(f"scancel {job}", cwd=work)
