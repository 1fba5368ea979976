"""The runscripts in steps of newer releases of Slurm: those of Debian trixie and sid, in a root directory of their own.

The clusters are as the testbed's, but start in seconds and hold neither modules nor torch: --dry-run prints what a rank
would get, and the steps of pytorch-run are shell commands.
"""

import os
import re
import shutil
import tempfile

import pytest
from repository import TREE

from testbed import debian_root
from testbed.layout import Layout
from testbed.layout import TestbedError as Obstacle

pytestmark = pytest.mark.thorough
#: The suites of Debian and the releases of Slurm in them.
SUITES = {"trixie": "24.11", "sid": "26.05"}
PACKAGES = ("munge", "python3", "slurm-client", "slurmctld", "slurmd")
CLUSTER = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/tests/integration"]
import failing_nodes
from testbed.cluster import slurm
from testbed.layout import Layout
layout = Layout(sys.argv[2])
getattr(slurm if sys.argv[3] in ("start", "stop") else failing_nodes, sys.argv[3])(layout, *sys.argv[4:])
"""
STEPS = r"""
trap 'python3 -c "$CLUSTER" {tree} {root} stop' EXIT
python3 -c "$CLUSTER" {tree} {root} start >&2
export SLURM_CONF={root}/cluster/etc/slurm.conf
cd {tree}/runscripts
srun --version
export SHOW='eval "$(./conda-python-distributed --dry-run)"
echo "$WHICH $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR $(./get-master)"'
WHICH=whole srun -N2 --ntasks-per-node=2 -w nid001001,nid001002 bash -c "$SHOW"
WHICH=part salloc --quiet -N3 -n6 -w nid001001,nid001002,nid001003 srun -N2 -n3 bash -c "$SHOW"
export WHICH=components
salloc --quiet -w nid001003 -N1 -n1 : -w nid001001 -N1 -n2 srun --het-group=0,1 bash -c "$SHOW"
printf '#!/bin/bash\n%s\n' "$SHOW" >{root}/script
WHICH=submitted srun -N2 -n2 bash -c \
    '[ $SLURM_PROCID = 0 ] || sbatch --quiet --wait --output={root}/out -N2 -n2 {root}/script'
cat {root}/out
export FAIL='case $SLURMD_NODENAME in
nid001002) python3 -c "$CLUSTER" {tree} {root} kill_slurmd nid001002; exit 1 ;;
nid001003) scontrol update NodeName=nid001003 State=DOWN Reason=test; exit 1 ;;
nid001004) echo "the last step"
esac'
salloc --no-kill -N4 ./pytorch-run --no-preflight --spare 2 --ntasks-per-node=1 -- bash -c "$FAIL" 2>&1
"""


@pytest.fixture(scope="module", params=SUITES)
def output(request):
    """What Slurm's version and the steps print."""
    if os.geteuid() != 0:
        pytest.skip("Only root may mount directories into another root directory.")
    try:
        system = debian_root.make(Layout.from_environment(os.environ), request.param, PACKAGES)
    except Obstacle as error:
        pytest.skip(str(error))
    cluster = Layout(tempfile.mkdtemp(prefix="newer-slurm-"))  # short: it holds sockets
    cluster.claim()
    cluster.logs.mkdir(parents=True)
    steps = STEPS.format(tree=TREE, root=cluster.root)
    done = debian_root.run_in(system, ["env", f"CLUSTER={CLUSTER}", "bash", "-e", "-c", steps], visible=[TREE])
    shutil.rmtree(cluster.root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f" {SUITES[request.param]}." in done.stdout.splitlines()[0]
    return done.stdout


def test_the_ranks_of_a_step_agree_on_their_world(output):
    """Also of a step of fewer tasks than its job, of a heterogeneous one, and of a batch script that inherited one."""
    shown = sorted(re.findall(r"^(?:whole|part|components|submitted) .*", output, re.MULTILINE))
    first = "nid001001 nid001001"
    third = "nid001003 nid001003"
    assert shown[:3] == [
        f"components 0/3 0/1 {third}",
        f"components 1/3 0/2 {third}",
        f"components 2/3 1/2 {third}",
    ]
    assert shown[3:6] == [f"part 0/3 0/2 {first}", f"part 1/3 1/2 {first}", f"part 2/3 0/1 {first}"]
    assert shown[6:7] == ["submitted 0/1 0/1 127.0.0.1 nid001001"]
    assert shown[7:] == [f"whole {rank}/4 {rank % 2}/2 {first}" for rank in range(4)]
    assert "SLURM_STEP_NUM_TASKS=2 is of a launch around this job: starting one process" in output


def test_pytorch_run_reads_which_nodes_failed(output):
    """One does not answer, and only srun's message names it; Slurm reports the other, srun too if it is the first."""
    failed = dict(re.findall(r"^pytorch-run: (nid\d+) failed: (.*)", output, re.MULTILINE))
    assert list(failed) == ["nid001002", "nid001003"], output
    assert re.match(r"srun: \w", failed["nid001002"])
    assert re.match(r"Slurm (reports down|removed it from the job)|srun: Node failure", failed["nid001003"])
    runs = re.findall(r"^pytorch-run: (run \d on .*)", output, re.MULTILINE)
    assert runs == [
        "run 1 on nid001001,nid001002, 2 spare",
        "run 2 on nid001001,nid001003, 1 spare",
        "run 3 on nid001001,nid001004, 0 spare",
    ]
    assert "\nthe last step\n" in output
