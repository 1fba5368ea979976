"""One mount of the image for the ranks of a node, which the host-side commands of the container module share."""

import re
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.testbed

#: More ranks than a node of the testbed has CPUs.
FOUR_RANKS = "srun -N1 -n4 --overcommit -w nid001001 "
NOTE = "mounts the image for itself"
#: Tells mounts apart, and the job, to look for what it leaves behind.
MOUNT = """
import os
print(os.environ['SLURMD_NODENAME'], os.stat('/proc/self/ns/mnt').st_ino, os.environ['SLURM_JOB_ID'], flush=True)
"""
ALL_REDUCE = f"""{MOUNT}
import torch, torch.distributed as dist
dist.init_process_group('gloo')
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == 4
dist.destroy_process_group()
"""
#: All ranks but one die when all of them are there; that one goes on to use what it has not read so far.
SURVIVING = f"""{MOUNT}
import glob, signal, sys, time
open(f"ready.{{os.environ['RANK']}}", 'w').close()
while len(glob.glob('ready.*')) < 4:
    time.sleep(0.1)
if os.environ['RANK'] != sys.argv[1]:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(2)  # for a mount that would go with its first rank
import torch
print('survived')
"""
#: A rank that stays until there is a file that tells it to go on.
STAYING = f"""{MOUNT}
import sys, time
open(f"{{sys.argv[1]}}.{{os.environ['SLURM_PROCID']}}", 'w').close()
while not os.path.exists(f"end-{{sys.argv[1]}}"):
    time.sleep(0.1)
import torch
print('stayed')
"""
#: As in test_ends.py, for signals that a step gets.
COUNTING = """
import os, signal, sys, time
received = []
for name in ('SIGTERM', 'SIGUSR1'):
    signal.signal(getattr(signal, name), lambda number, _: received.append(signal.Signals(number).name))
open(f"ready.{os.environ['SLURM_PROCID']}", 'w').close()
while not os.path.exists('enough'):
    time.sleep(0.1)
time.sleep(1)  # for a second one that might follow
os.write(1, f"received {' '.join(received)}\\n".encode())
sys.exit(7)
"""
#: What a rank has from whoever started it.
SURROUNDINGS = """
import os, sys
with open('/proc/self/status') as file:
    status = [line for line in file if line.startswith(('SigBlk', 'SigIgn', 'Umask', 'Groups', 'NoNewPrivs'))]
with open(f"{sys.argv[1]}.{os.environ['SLURM_PROCID']}", 'w') as file:
    variables = sorted(os.environ.items() - {('PYTORCH_LAUNCH_SHARE_IMAGE', '0')})
    print(variables, os.getcwd(), status, sys.stdin.read(), file=file, sep='\\n')
"""


@pytest.fixture
def load(container):
    """Loads the module."""
    return f"module load {container}\n"


@pytest.fixture(params=["", "export APPTAINER_USERNS=1 SINGULARITY_USERNS=1\n"], ids=["by-root", "by-users"])
def load_for(request, load):
    """Loads the module, and has the image mounted as the runtime does for root, if we are, or for ordinary users."""
    return load + request.param


def mounts(output):
    """What ranks printed by MOUNT: the mounts of each node, and the job."""
    lines = re.findall(r"^(nid\d+) (\d+) (\d+)$", output, re.MULTILINE)
    nodes = {}
    for node, mount, _ in lines:
        nodes.setdefault(node, []).append(int(mount))
    assert lines, output
    return nodes, lines[0][2]


def left_behind(output):
    """What there still is of the mounts and holders of a job, which have some seconds to end."""
    nodes, job = mounts(output)
    for _ in range(50):
        left = re.findall(rf"@pytorch-image .* {job} .*", Path("/proc/net/unix").read_text())
        left += [process for process in Path("/proc").glob("[0-9]*") if mount_of(process) in sum(nodes.values(), [])]
        if not left:
            break
        time.sleep(0.2)
    return left


def mount_of(process):
    """The number of the mount namespace of a process, None if it has just ended."""
    try:
        return (process / "ns" / "mnt").stat().st_ino
    except OSError:
        return None


def test_a_world_of_four_on_two_nodes_has_one_mount_on_each_and_leaves_nothing(testbed, load_for, work):
    (work / "all_reduce.py").write_text(ALL_REDUCE)
    result = testbed.run_unchecked(
        f"{load_for}srun -N2 --ntasks-per-node=2 conda-python-distributed all_reduce.py", cwd=work
    )
    assert result.returncode == 0, result.stderr
    nodes, _ = mounts(result.stdout)
    assert [len(each) for each in nodes.values()] == [2, 2]
    assert len({mount for each in nodes.values() for mount in each}) == 2
    assert NOTE not in result.stderr
    assert left_behind(result.stdout) == []


def test_a_rank_has_what_it_has_in_a_mount_of_its_own(testbed, load_for, work):
    (work / "surroundings.py").write_text(SURROUNDINGS)
    (work / "ranks").write_text(
        """export OF_THE_RANK="$SLURM_PROCID
second line" SINGULARITYENV_INSIDE=1 APPTAINERENV_INSIDE=1
umask 027
greet() { echo hello; }
export -f greet
python surroundings.py shared < surroundings.py
PYTORCH_LAUNCH_SHARE_IMAGE=0 python surroundings.py own < surroundings.py
"""
    )
    testbed.run(f"{load_for}{FOUR_RANKS} bash ranks", cwd=work)
    for rank in range(4):
        shared, own = ((work / f"{kind}.{rank}").read_text() for kind in ("shared", "own"))
        assert shared == own
        assert f"('OF_THE_RANK', '{rank}\\nsecond line')" in shared
        assert "('INSIDE', '1')" in shared


@pytest.mark.parametrize("survivor", [0, 3])
def test_ranks_that_are_killed_take_the_mount_from_nobody(testbed, load_for, work, survivor):
    """Two runs, as any rank may be the one that the mount began with."""
    (work / "surviving.py").write_text(SURVIVING)
    result = testbed.run_unchecked(
        f"{load_for}SLURM_KILL_BAD_EXIT=0 {FOUR_RANKS} conda-python-distributed surviving.py {survivor}", cwd=work
    )
    assert "survived" in result.stdout, result.stderr
    nodes, _ = mounts(result.stdout)
    assert len(set(nodes["nid001001"])) == 1
    assert left_behind(result.stdout) == []


def test_a_step_that_is_killed_leaves_nothing(testbed, load_for, work):
    (work / "staying.py").write_text(STAYING)
    result = testbed.run_unchecked(
        f"""{load_for}{FOUR_RANKS} --job-name=killed-{work.name} python staying.py rank & step=$!
until [ -e rank.0 ] && [ -e rank.1 ] && [ -e rank.2 ] && [ -e rank.3 ]; do sleep 0.1; done
scancel --signal=KILL --name=killed-{work.name} --user=$(id -un)
wait $step""",
        cwd=work,
    )
    assert result.returncode != 0
    assert left_behind(result.stdout) == []


def test_two_steps_at_once_have_mounts_of_their_own(testbed, load, work):
    (work / "staying.py").write_text(STAYING)
    result = testbed.run_unchecked(
        f"""{load}{FOUR_RANKS} python staying.py one > one.out & one=$!
{FOUR_RANKS} python staying.py two > two.out & two=$!
until [ -e one.3 ] && [ -e two.3 ]; do sleep 0.1; done
touch end-one
wait $one || exit
sleep 2
touch end-two
wait $two""",
        cwd=work,
    )
    assert result.returncode == 0, result.stderr
    one, two = ((work / f"{name}.out").read_text() for name in ("one", "two"))
    assert one.count("stayed") == two.count("stayed") == 4
    assert len(set(mounts(one)[0]["nid001001"])) == len(set(mounts(two)[0]["nid001001"])) == 1
    assert mounts(one)[0] != mounts(two)[0]


@pytest.mark.parametrize("signal", ["TERM", "USR1"])
def test_a_signal_to_the_step_reaches_python_once_and_the_mount_stays(testbed, load, work, signal):
    """Once, unlike under the runtime's own `exec`: no process of the runtime is there that would forward another."""
    (work / "counting.py").write_text(COUNTING)
    result = testbed.run_unchecked(
        f"""{load}export SLURM_KILL_BAD_EXIT=0  # each rank is to say what it received
{FOUR_RANKS} --job-name=counting-{work.name} python counting.py & step=$!
until [ -e ready.0 ] && [ -e ready.1 ] && [ -e ready.2 ] && [ -e ready.3 ]; do sleep 0.1; done
scancel --signal={signal} --name=counting-{work.name} --user=$(id -un)
sleep 1
touch enough
wait $step""",
        cwd=work,
    )
    assert result.stdout.splitlines() == [f"received SIG{signal}"] * 4, result.stderr
    assert result.returncode == 7


def test_ranks_that_cannot_share_a_mount_have_their_own_and_one_says_why(testbed, load, work):
    (work / "mount.py").write_text(MOUNT)
    result = testbed.run_unchecked(
        f"{load}export APPTAINER_UNSHARE_IPC=1 APPTAINER_IPC=1\n{FOUR_RANKS} python mount.py", cwd=work
    )
    assert result.returncode == 0, result.stderr
    nodes, _ = mounts(result.stdout)
    assert len(set(nodes["nid001001"])) == 4
    assert result.stderr.count(NOTE) == 1
    assert f"nid001001 {NOTE}, as the container has namespaces of its own: ipc" in result.stderr
    assert left_behind(result.stdout) == []


def test_sharing_can_be_declined(testbed, load, work):
    (work / "mount.py").write_text(MOUNT)
    result = testbed.run_unchecked(f"{load}PYTORCH_LAUNCH_SHARE_IMAGE=0 {FOUR_RANKS} python mount.py", cwd=work)
    assert result.returncode == 0, result.stderr
    assert len(set(mounts(result.stdout)[0]["nid001001"])) == 4
    assert NOTE not in result.stderr


def test_after_the_holder_is_killed_the_next_ranks_have_a_new_mount(testbed, load, work):
    """By a step's variables alone, as a rank of it would otherwise have to wait for the others."""
    (work / "staying.py").write_text(STAYING)
    (work / "mount.py").write_text(MOUNT)
    result = testbed.run_unchecked(
        f"""{load}export SLURMD_NODENAME=nid001001 SLURM_JOB_ID=$$ SLURM_STEP_ID=0
export SLURM_STEP_TASKS_PER_NODE=2 SLURM_PROCID=0
python staying.py rank > first & rank=$!
until [ -e rank.0 ]; do sleep 0.1; done
for process in $(grep -lsxz "SLURM_JOB_ID=$$" /proc/[0-9]*/environ); do
    if grep -qs share-image.py "${{process%/*}}/cmdline"; then kill -KILL $(basename "${{process%/*}}"); fi
done
python mount.py
kill -KILL $rank
cat first >&2""",
        cwd=work,
    )
    nodes, _ = mounts(result.stdout)
    assert nodes != mounts(result.stderr)[0]
    assert left_behind(result.stdout) == left_behind(result.stderr) == []
