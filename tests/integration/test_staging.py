"""Packed venvs and staging on the nodes of a cluster, each with a disk of its own; the installations have no torch."""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys

import pytest
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


def test_a_printed_copy_is_removed_with_the_job(job, work, disk):
    (work / "a file").write_text("text")
    output, _ = job('copy=$(pytorch-stage --print "a file"); srun -N2 -n2 cat "$copy"; srun -N2 -n2 ls -d "$copy"')
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
FILLER = """until compgen -G "$PYTORCH_LAUNCH_STAGE_DIR/pytorch-stage-*" > /dev/null; do sleep 0.02; done
head -c 200M /dev/zero > $PYTORCH_LAUNCH_STAGE_DIR/other
"""


def test_a_disk_that_is_full_during_the_copy_is_reported_and_nothing_of_the_copy_stays(
    job, installation, testbed, work
):
    small_disk = testbed.layout.cluster / "small-disk"
    (work / "filler.sh").write_text(FILLER)
    output, errors = job(f"""export PYTORCH_LAUNCH_STAGE_DIR={small_disk}
srun --overlap -n2 -N2 bash filler.sh & sleep 1
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
    assert sorted(counts)[3] <= 40  # half of the ranks mount
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
        assert output.split()[0] == hashlib.sha256(installation.file.read_bytes()).hexdigest()
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


#: Another user, who reads command lines and directories, creates what is created there, and enters what there is.
ATTACK = r"""
import contextlib, os, re, sys, time
from pathlib import Path
pause, *disks = sys.argv[1:]
disks, seen, NAME = [Path(path) for path in disks], set(), re.compile(rb"pytorch-stage-[0-9a-f]{8,}")
while True:
    time.sleep(float(pause))
    found = {os.fsencode(name) for disk in disks for name in os.listdir(disk)}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            found.update(NAME.findall(Path("/proc", pid, "cmdline").read_bytes()))
    for name in found - seen:
        for path in (disk / os.fsdecode(name) for disk in disks):
            rename, change = lambda path: os.rename(path, f"{path}-mine"), lambda path: os.chmod(path, 0o777)
            for enter in (os.listdir, os.chdir, os.rmdir, rename, change):
                with contextlib.suppress(OSError):
                    enter(path)
                    print("entered", path, flush=True)
            with contextlib.suppress(OSError):
                path.mkdir()
                path.chmod(0o777)
                print("made", path, flush=True)
        seen.add(name)
"""


def made_by(user, disks):
    """What a user has made in directories."""
    found = []
    for path in (path for disk in disks for path in disk.iterdir()):
        with contextlib.suppress(FileNotFoundError):  # it is removed meanwhile
            if path.stat().st_uid == user:
                found.append(path)
    return found


@pytest.mark.parametrize(("count", "pause"), [(3, "0.01"), pytest.param(50, "0", marks=pytest.mark.thorough)])
def test_another_user_can_neither_enter_nor_delay(testbed, installation, disk, work, count, pause):
    if os.geteuid() != 0:
        pytest.skip("only root can be two users")
    disks = [testbed.layout.cluster / "disks" / node for node in NODES]
    modes = [path.stat().st_mode for path in disks]
    (work / "attack.py").write_text(ATTACK)
    work.chmod(0o777)
    as_user = "setpriv --reuid={0} --regid={0} --clear-groups --inh-caps=-all"
    script = f"""{installation.load}export PYTORCH_LAUNCH_STAGE_DIR={disk}
for ((i = 0; i < {count}; i++)); do
  (began=$(date +%s%N); source <(pytorch-stage) && echo "took $(( ($(date +%s%N) - began) / 1000000 ))"
   srun -N2 -n2 sha256sum "$PYTORCH_PACKED")
done"""
    (work / "job.sh").write_text(script)
    for path in disks:
        path.chmod(0o1777)
    attack = [*as_user.format(12345).split(), sys.executable, work / "attack.py", pause, *disks]
    try:
        with (work / "attack.log").open("w") as log, subprocess.Popen(attack, stdout=log, cwd="/") as attacker:
            try:
                salloc = f"{as_user.format(65534)} salloc --quiet -N2 -n2 bash job.sh"
                done = testbed.run_unchecked(salloc, cwd=work, timeout=600 + 60 * count)
            finally:
                attacker.kill()
        # the copies are removed after the job
        left_after(60, lambda: made_by(65534, disks))
    finally:
        for path, mode in zip(disks, modes):
            path.chmod(mode)
        for made in made_by(12345, disks):
            made.rmdir()
    log = [line for line in (work / "attack.log").read_text().splitlines() if line.startswith("entered")]
    times = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("took")]
    print(sorted(times), (work / "attack.log").read_text(), done.stderr)
    assert len(times) == count, done.stderr
    assert sorted(times)[-2] < 5000 + 2 * sorted(times)[count // 2]  # one may be the machine's: an attack delays most
    assert len({line.split()[0] for line in done.stdout.splitlines() if "/pytorch-stage-" in line}) == 1
    assert log == []
