"""Packed venvs and staging on the nodes of a cluster, each with a disk of its own; the installations have no torch."""

import os
import re
import shutil
import subprocess

import pytest
from distributions import sha256
from failing_nodes import kill_slurmd_and_report, own_cluster, slurmd
from optional_packages import need
from small_installation import PROBE, SmallInstallation
from waiting import left_after, wait_for

from testbed.layout import NODES

pytestmark = [pytest.mark.testbed, pytest.mark.early]


@pytest.fixture(scope="module")
def installation(testbed):
    """An installation whose file takes a moment to copy."""
    if not shutil.which("mksquashfs") or testbed.obstacle:
        pytest.skip("no squashfs-tools, or no user namespaces with FUSE")
    root = testbed.layout.root / "small-installation"
    shutil.rmtree(root, ignore_errors=True)
    yield SmallInstallation(root, filler=60_000_000)
    shutil.rmtree(root)


@pytest.fixture
def disk(testbed):
    """The directory that is another disk on each node; empty afterwards."""
    yield testbed.layout.cluster / "disk"
    assert left_soon(testbed) == []


def left_soon(testbed):
    """What stagings have left on all nodes some seconds after their jobs."""
    return left_after(120, lambda: (testbed.layout.cluster / "disks").glob("*/*"))


@pytest.fixture
def job(testbed, installation, disk, work):
    """A function that runs a script in a job after loading the installation; returns output and errors."""
    (work / "probe.py").write_text(PROBE)

    def run(script, installation=installation, nodes=2):
        (work / "job.sh").write_text(f"{installation.load}export PYTORCH_LAUNCH_STAGE_DIR={disk}\n{script}\n")
        done = testbed.run_unchecked(f"salloc --quiet -N{nodes} -n{2 * nodes} bash job.sh", cwd=work)
        return done.stdout, done.stderr

    return run


def test_the_ranks_of_all_steps_mount_the_copy_which_is_removed_with_the_job(job, installation, disk):
    output, errors = job("""set -euo pipefail
source <(pytorch-stage)
echo $PYTORCH_PACKED
srun -n4 conda-python-distributed probe.py; srun -n1 -N1 conda-python-distributed probe.py
srun -N2 -n2 stat -c %a "${PYTORCH_PACKED%/*}" """)
    path, *others = output.splitlines()
    assert re.fullmatch(rf"{disk}/pytorch-stage-[0-9a-f]{{32}}/venv.squashfs", path)
    ranks = sorted(line.rpartition(" ")[0] for line in others[:5])
    assert ranks == [f"{rank} True {path}" for rank in (0, 0, 1, 2, 3)]
    assert others[5:] == ["700", "700"]
    assert "venv.squashfs copied to 2 nodes: " in errors


def test_copies_of_files_are_removed_with_the_job(job, work, disk):
    (work / "a file").write_text("text")
    output, _ = job('''source <(pytorch-stage "a file")
srun -N2 -n2 cat "$PYTORCH_STAGED/a file"; srun -N2 -n2 ls -d "$PYTORCH_STAGED"''')
    assert output.count("text") == 2
    assert output.count("/pytorch-stage-") == 2


@pytest.mark.parametrize(
    ("end", "limit"),
    [
        ("scancel $SLURM_JOB_ID", ""),
        ("kill -KILL $$", ""),
        ("kill -TERM $$", ""),
        pytest.param("true", "--time=1", marks=pytest.mark.thorough),  # a minute
    ],
)
def test_a_job_that_is_killed_leaves_no_file_and_no_process(testbed, installation, disk, work, end, limit):
    (work / "job.sh").write_text(f"""#!/bin/bash
{installation.load}export PYTORCH_LAUNCH_STAGE_DIR={disk}
source <(pytorch-stage) && echo staged
{end} &
srun -N2 -n2 sleep 100""")  # bash can wait for it after a SIGTERM, if the signal comes while bash forks
    number = testbed.run(f"sbatch --parsable --wait -N2 -n4 {limit} -o out job.sh || :", cwd=work).strip()
    assert "staged" in (work / "out").read_text()
    assert left_soon(testbed) == []
    left = subprocess.run(["pgrep", "--full", f"{installation.root}/|--jobid={number}"], check=False)
    assert left.returncode == 1


def test_an_sbcast_that_fails_is_an_error(job, work, installation):
    sbcast = work / "first" / "sbcast"
    sbcast.parent.mkdir()
    sbcast.write_text("#!/bin/bash\nhead -c 1000000 $2 > $3; echo sbcast: error: broken >&2; exit 1")
    sbcast.chmod(0o755)
    output, errors = job("""PATH=$PWD/first:$PATH
source <(pytorch-stage) || echo "status $?"; echo $PYTORCH_PACKED
srun -N2 -n2 ls -A $PYTORCH_LAUNCH_STAGE_DIR""")
    assert output.splitlines() == ["status 1", str(installation.file)]
    assert "sbcast: error: broken\npytorch-stage: the copy failed. Set PYTORCH_LAUNCH_STAGE_DIR" in errors


#: Fills the disk of a node as soon as a copy begins.
FILLER = """touch waiting.$SLURM_PROCID
until compgen -G "$PYTORCH_LAUNCH_STAGE_DIR/pytorch-stage-*" > /dev/null; do sleep 0.02; done
head -c 200M /dev/zero > $PYTORCH_LAUNCH_STAGE_DIR/other
"""


def test_a_disk_that_is_full_during_the_copy_is_reported_and_nothing_of_the_copy_stays(
    job, installation, testbed, work
):
    small_disk = testbed.layout.cluster / "small-disk"
    (work / "filler.sh").write_text(FILLER)
    output, errors = job(f"""export PYTORCH_LAUNCH_STAGE_DIR={small_disk}
srun --overlap -n2 -N2 bash filler.sh &
until [ -e waiting.0 ] && [ -e waiting.1 ]; do sleep 0.1; done
source <(pytorch-stage) || echo "status $?"
wait; srun -n2 -N2 bash -c 'ls {small_disk}; rm {small_disk}/other'; echo $PYTORCH_PACKED""")
    assert output.splitlines() == ["status 1", "other", "other", str(installation.file)]
    assert re.search(r"sbcast: error: .*nid00100\d(.*\n)+pytorch-stage: the copy failed\. Set PYTORCH_LAUNCH", errors)


def test_a_launch_makes_few_calls_to_the_installation_before_it_runs_from_the_packed_one(job, installation):
    need("strace")
    output, _ = job("""trace() { exec strace -f -qq -e trace=%file,mount,setns -o trace-$1-$SLURM_PROCID "${@:2}"; }
export -f trace
srun -n4 bash -c 'trace packed conda-python-distributed -c pass'
source <(pytorch-stage)
srun -n4 bash -c 'trace staged conda-python-distributed -c pass'
for trace in trace-*; do sed '/nsenter/,$d' $trace | grep -v execve | grep -c '"'$CONTAINERROOT/; done""")
    counts = [int(line) for line in output.splitlines()]
    assert len(counts) == 8
    assert min(counts) <= 40  # a rank that joins the mount of another: how many do depends on when they start
    assert max(counts) <= 70


def test_a_node_that_fails_ends_nothing_on_the_others(work, installation):
    """The others keep their copies until the job ends."""
    with own_cluster(work / "cluster", slurmd_timeout=300) as cluster:
        if os.readlink(f"/proc/{slurmd(cluster, 'nid001001')}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
            pytest.skip("this machine denies namespaces, by which a node's processes are found")
        disk = cluster.cluster / "disk"
        script = f"""export SLURM_CONF={cluster.slurm_conf}
{installation.load}export PYTORCH_LAUNCH_STAGE_DIR={disk}
source <(pytorch-stage); touch staged
until [ -e failed ]; do sleep 0.1; done
srun --overlap -N1 -n1 -w nid001001 sha256sum $PYTORCH_PACKED"""
        (work / "job.sh").write_text(script)
        command = f"export SLURM_CONF={cluster.slurm_conf}; exec salloc --quiet --no-kill -N2 -n2 bash job.sh"
        with subprocess.Popen(["bash", "-c", command], cwd=work, stdout=subprocess.PIPE, text=True) as job:
            wait_for(lambda: (work / "staged").exists() or job.poll() is not None)
            kill_slurmd_and_report(cluster, "nid001002")
            (work / "failed").touch()
            output = job.communicate(timeout=300)[0]
        assert output.split()[0] == sha256(installation.file)
        assert left_after(60, lambda: (cluster.cluster / "disks" / "nid001001").glob("*")) == []


@pytest.mark.thorough  # copies 700 MB
def test_the_image_of_a_container_module_is_staged_under_one_path(testbed, container, disk, work):
    (work / "job.sh").write_text(f"""module load {container}
export PYTORCH_LAUNCH_STAGE_DIR={disk}
source <(pytorch-stage)
srun -N2 -n2 singularity exec $SIF conda-python-distributed -c 'import os, torch; print(os.environ["APPTAINER_NAME"])'
echo $SIF
srun -N2 -n2 conda-python-distributed -c 'import os; print(os.environ["APPTAINER_CONTAINER"])'
module unload PyTorch; echo "SIF=$SIF"
""")
    output = testbed.run("salloc --quiet -N2 -n2 bash job.sh", cwd=work)
    first, second, path, *others = output.splitlines()
    assert first == second == path.rpartition("/")[2]
    assert path.startswith(f"{disk}/pytorch-stage-")
    assert others == [path, path, "SIF="]


#: What another user tries with each copy on all nodes, as long as the test runs.
ATTACK = """import contextlib, os, sys, time
print("begun", flush=True)
rename, change = lambda path: os.rename(path, path + "-mine"), lambda path: os.chmod(path, 0o777)
while True:
    time.sleep(0.01)
    for disk in sys.argv[1:]:
        for path in [os.path.join(disk, name) for name in os.listdir(disk)]:
            for enter in (os.listdir, os.chdir, os.rmdir, rename, change):
                with contextlib.suppress(OSError):
                    enter(path)
                    print("entered", path, flush=True)
"""


@pytest.fixture
def open_disks(testbed, disk):
    """The directories of the nodes' disks, on which every user may create names for a while."""
    disks = [testbed.layout.cluster / "disks" / node for node in NODES]
    modes = [path.stat().st_mode for path in disks]
    for path in disks:
        path.chmod(0o1777)
    yield disks
    left_soon(testbed)  # the nodes remove the copies after the job, as its user
    for path, mode in zip(disks, modes):
        path.chmod(mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("count", [3, pytest.param(50, marks=pytest.mark.thorough)])
def test_another_user_cannot_enter_a_copy(testbed, installation, disk, open_disks, work, count):
    as_user = "setpriv --reuid={0} --regid={0} --clear-groups --inh-caps=-all"
    (work / "job.sh").write_text(f"""{installation.load}export PYTORCH_LAUNCH_STAGE_DIR={disk}
for i in {{1..{count}}}; do
    (source <(pytorch-stage); srun -N2 -n2 sha256sum "$PYTORCH_PACKED")
done""")
    work.chmod(0o777)
    attack = [*as_user.format(12345).split(), "/usr/bin/python3", "-c", ATTACK, *open_disks]
    with subprocess.Popen(attack, stdout=subprocess.PIPE, cwd="/", text=True) as attacker:
        assert attacker.stdout.readline() == "begun\n"
        try:
            done = testbed.run_unchecked(
                f"{as_user.format(65534)} salloc --quiet -N2 -n2 bash job.sh", cwd=work, timeout=600 + 60 * count
            )
        finally:
            attacker.kill()
        assert attacker.stdout.read() == ""
    digest = sha256(installation.file)
    copies = [line.split() for line in done.stdout.splitlines()]
    assert [copy[0] for copy in copies] == [digest] * 2 * count, done.stderr
    assert all(copy[1].startswith(f"{disk}/pytorch-stage-") for copy in copies)
