"""Packed venvs and staging on the nodes of a cluster, each with a disk of its own; the installations have no torch."""

import contextlib
import random
import re
import shutil
import time
from pathlib import Path

import pytest
from small_installation import SmallInstallation

from testbed.cluster import node_mounts
from testbed.layout import NODES
from testbed.packages import find_optional

pytestmark = pytest.mark.testbed

#: Prints the mounted file, whether the packed files are those that Python runs from, and its rank.
PROBE = """
import os, sys
mounts = [line.split()[0] for line in open('/proc/mounts') if ' fuse.squashfuse ' in line]
print(os.environ['RANK'], os.path.exists(sys.prefix + '/../.packed'), *mounts)
"""


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
    deadline = time.monotonic() + 120
    while True:
        left = sorted(str(path) for path in (testbed.layout.cluster / "disks").glob("*/*"))
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


@pytest.fixture
def job(testbed, installation, disk, work):
    """A function that runs a script in a job after loading the installation; returns output and errors."""
    (work / "probe.py").write_text(PROBE)

    def run(script, installation=installation, nodes=2):
        (work / "job.sh").write_text(f"{installation.load}export PYTORCH_LAUNCH_STAGE_DIR={disk}\n{script}\n")
        done = testbed.run_unchecked(f"salloc --quiet -N{nodes} -n{2 * nodes} bash job.sh", cwd=work)
        return done.stdout, done.stderr

    return run


def test_the_ranks_of_a_node_share_one_mount_at_the_installations_own_path(job, installation):
    output, errors = job("PYTORCH_LAUNCH_VERBOSE=1 srun -n4 conda-python-distributed probe.py")
    assert sorted(output.splitlines()) == [f"{rank} True {installation.file}" for rank in range(4)]
    assert len(re.findall(r"mounted by .*squashfuse", errors)) + len(re.findall("by the first process", errors)) == 2


def test_other_commands_of_the_module_run_from_the_packed_file_too(job, installation):
    output, errors = job("""export RANK=0
python probe.py; conda-python-simple probe.py; bash -c 'source <(ddp-env) && python probe.py'
PYTORCH_LAUNCH_PACKED=0 python probe.py""")
    assert output.splitlines() == [*[f"0 True {installation.file}"] * 3, "0 False"]
    assert errors.replace("only one process", "").count("packed venv") == 0


def test_a_variable_stages_once_for_all_steps_of_a_job(job, installation):
    output, errors = job(f"""export PYTORCH_LAUNCH_STAGE=1
srun -n4 conda-python-distributed probe.py; srun -n4 conda-python-distributed probe.py
cat {installation.root.parent}/cluster/disks/*/*/* 2>/dev/null | wc -c""")
    *lines, on_disk = output.splitlines()
    assert len(lines) == 8
    assert all(re.fullmatch(r"\d True /proc/\d+/fd/\d+", line) for line in lines), lines
    assert re.findall(r"staged on \d nodes? in [\d.]+ s", errors) == [re.search(r"staged on 2 nodes.*? s", errors)[0]]
    assert on_disk == "0"  # the copy has no name


def test_a_file_without_room_is_used_where_it_is(job, installation):
    with installation.file.open("r+b") as file:
        size = file.seek(0, 2)
        file.truncate(1 << 43)  # 8.8 TB, without blocks
    try:
        record = (installation.root / "provenance" / "packed.json").read_text()
        installation.record("0" * 64)
        output, errors = job("export PYTORCH_LAUNCH_STAGE=1\nsrun -n2 -N2 conda-python-distributed probe.py")
    finally:
        with installation.file.open("r+b") as file:
            file.truncate(size)
        (installation.root / "provenance" / "packed.json").write_text(record)
    assert sorted(output.splitlines()) == [f"{rank} True {installation.file}" for rank in range(2)]
    assert re.search(r"not enough room on nid00100\d for \d+\.\d+ GB: .*disk \d+\.\d+ GB.*Using the shared", errors)
    assert errors.count("not enough room") == 1


@pytest.mark.parametrize(
    ("mode", "instead", "statuses"),
    [
        ("1", "", []),
        ("sbcast", "", ["0"]),
        ("sbcast", "head -c 1000000 $2 > $3; false", ["1"]),  # leaves a part
    ],
    ids=["default", "sbcast", "sbcast-fails"],
)
def test_the_nodes_copy_the_file_unless_the_user_chose_sbcast(job, work, mode, instead, statuses):
    (work / "first").mkdir()
    (work / "first" / "sbcast").write_text(f"""#!/bin/bash
first={work}/first:
PATH=${{PATH//"$first"/}}
{instead or 'sbcast "$@"'}
status=$?
echo $status >> {work}/statuses
exit $status
""")
    (work / "first" / "sbcast").chmod(0o755)
    (work / "statuses").touch()
    output, errors = job(f"""export PYTORCH_LAUNCH_STAGE={mode} PATH={work}/first:$PATH
srun -n2 -N2 conda-python-distributed probe.py""")
    assert len(re.findall(r"^\d True /proc/\d+/fd/\d+$", output, re.MULTILINE)) == 2, errors
    assert errors.count("staged on 2 nodes") == 1, errors
    assert (work / "statuses").read_text().split() == statuses


#: Fills the disk of a node as soon as a copy begins.
FILLER = """until compgen -G "$PYTORCH_LAUNCH_STAGE_DIR/pytorch-stage-*" > /dev/null; do :; done
head -c 200M /dev/zero > $PYTORCH_LAUNCH_STAGE_DIR/other
"""


@pytest.fixture
def small_disk(testbed, disk):
    """A directory that is a disk of 200 MB on each node."""
    directory = disk / "small"
    pids = [node_mounts.node_pid(testbed.layout, node) for node in NODES]
    with contextlib.ExitStack() as stack:
        for node, pid in zip(NODES, pids, strict=True):
            own = testbed.layout.cluster / "disks" / node / directory.name
            own.mkdir()
            stack.callback(own.rmdir)
            mount = ["mount", "-t", "tmpfs", "-o", "size=200m", "none", directory]
            assert node_mounts.start_in_namespace(pid, mount).wait() == 0
            stack.callback(lambda pid=pid: node_mounts.start_in_namespace(pid, ["umount", "--lazy", directory]).wait())
        yield directory


def test_a_disk_that_is_full_during_the_copy_is_reported_and_nothing_of_the_copy_stays(
    job, installation, small_disk, work
):
    """With sbcast, which is slow enough for the disk to be full; the tree fails after it."""
    (work / "filler.sh").write_text(FILLER)
    output, errors = job(f"""export PYTORCH_LAUNCH_STAGE=sbcast PYTORCH_LAUNCH_STAGE_DIR={small_disk}
srun --overlap -n2 -N2 bash filler.sh & sleep 1
srun --overlap -n2 -N2 conda-python-distributed probe.py
wait; srun -n2 -N2 bash -c '
until [ "$(ls {small_disk})" = other ] || ((SECONDS > 120)); do sleep 0.1; done; ls {small_disk}'""")
    assert sorted(output.splitlines()) == [*[f"{rank} True {installation.file}" for rank in range(2)], "other", "other"]
    assert re.search(r"staging: .*No space left on device.*Using the shared files", errors)
    assert errors.count("Using the shared files") == 1


def test_a_file_with_another_byte_is_not_used(job, installation):
    with installation.file.open("r+b") as file:
        file.seek(30_000_000)
        byte = file.read(1)
        file.seek(30_000_000)
        file.write(bytes([byte[0] ^ 1]))
    try:
        output, errors = job("""source <(pytorch-stage) || echo "status $?"
PYTORCH_LAUNCH_STAGE=1 srun -n2 -N2 conda-python-distributed probe.py""")
    finally:
        with installation.file.open("r+b") as file:
            file.seek(30_000_000)
            file.write(byte)
    assert sorted(output.splitlines()) == ["0 False", "1 False", "status 1"]
    assert "is damaged: it was installed with SHA-256" in errors


@pytest.fixture
def without_squashfuse(work):
    """A directory with the host's commands but squashfuse: on such a node, nothing mounts a packed file."""
    (work / "bin").mkdir()
    for directory in ("/bin", "/usr/sbin", "/usr/bin"):
        for path in Path(directory).iterdir():
            if not path.name.startswith(("squashfuse", "apptainer")) and not (work / "bin" / path.name).exists():
                (work / "bin" / path.name).symlink_to(path)
    return work / "bin"


def test_a_venv_that_cannot_be_mounted_is_unpacked_on_each_node(job, installation, disk, without_squashfuse):
    output, errors = job(f"""export PATH={installation.root}/bin:{installation.root}/venv/bin:{without_squashfuse}
srun -n4 conda-python-distributed -c 'import os, sys; print(os.environ["RANK"], sys.prefix)'
unset SLURM_JOB_ID; conda-python-distributed -c 'import sys; print(sys.prefix)'""")
    *ranks, alone = output.splitlines()
    assert sorted(rank.split()[0] for rank in ranks) == ["0", "1", "2", "3"]
    assert all(re.fullmatch(rf"\d {disk}/pytorch-stage-[0-9a-f]{{16}}/tree/venv", rank) for rank in ranks), ranks
    assert errors.count("packed venv unpacked to") == 2  # once for each node
    assert alone == f"{installation.root}/venv"
    assert f"packed venv not mounted: squashfuse not found on PATH or in Apptainer. Using the unpacked files in {installation.root}" in errors  # noqa: E501


def test_a_launch_names_ten_files_of_the_installation_before_it_runs_from_the_packed_one(job, installation):
    if find_optional("strace") is None:
        pytest.skip("strace is not installed (./run-tests does that where it may install packages)")
    output, _ = job("""source <(pytorch-stage)
trace() { exec strace -f -qq -e trace=%file,mount,setns -o trace-$1-$SLURM_PROCID "${@:2}"; }
export -f trace
PYTORCH_LAUNCH_STAGE=0 srun -n4 bash -c 'trace packed conda-python-distributed -c pass'
srun -n4 bash -c 'trace staged conda-python-distributed -c pass'
for trace in trace-*; do sed '/setns(/,$d' $trace | grep -v execve | grep -c '"'$CONTAINERROOT/; done""")
    counts = [int(line) for line in output.splitlines()]
    assert len(counts) == 8
    assert max(counts) <= 10


def test_two_jobs_at_once_have_their_own_copies(testbed, job, installation, disk, work):
    script = "source <(pytorch-stage); srun -n2 -N2 conda-python-distributed probe.py"
    (work / "two.sh").write_text(f"{installation.load}export PYTORCH_LAUNCH_STAGE_DIR={disk}\n{script}\n")
    (work / "probe.py").write_text(PROBE)
    output = testbed.run("for i in 1 2; do salloc --quiet -N2 -n2 bash two.sh & done; wait", cwd=work)
    assert len(re.findall(r"^\d True /proc/\d+/fd/\d+$", output, re.MULTILINE)) == 4, output


def test_another_launcher_starts_the_processes_that_copy_the_file(testbed, job, installation):
    command = find_optional("openmpi-bin")
    if command is None:
        pytest.skip("openmpi-bin is not installed (./run-tests does that where it may install packages)")
    # Slurm starts the processes of this mpirun beside those of the other one
    mpirun = f"env SLURM_OVERLAP=1 {command} --allow-run-as-root --map-by ppr:1:node --bind-to none"
    output, errors = job(f"""source <(pytorch-stage -- {mpirun})
{mpirun} conda-python-distributed probe.py""", nodes=3)
    assert len(re.findall(r"^\d True /proc/\d+/fd/\d+$", output, re.MULTILINE)) == 3, errors
    assert "staged on 3 nodes" in errors


@pytest.mark.thorough  # copies 700 MB
def test_the_image_of_a_container_module_is_staged_under_one_path(testbed, container, disk, work):
    (work / "job.sh").write_text(f"""module load {container}
export PYTORCH_LAUNCH_STAGE_DIR={disk}
source <(pytorch-stage)
srun -N2 -n2 singularity exec $SIF conda-python-distributed -c 'import os, torch; print(os.environ["APPTAINER_NAME"])'
echo $SIF; unset SIF; module unload PyTorch; module load {container}
PYTORCH_LAUNCH_STAGE=1 srun -N2 -n2 conda-python-distributed -c 'import os; print(os.environ["APPTAINER_CONTAINER"])'
""")
    output = testbed.run("salloc --quiet -N2 -n2 bash job.sh", cwd=work)
    first, second, path, *others = output.splitlines()
    assert first == second == Path(path).name
    assert path.startswith(f"{disk}/pytorch-stage-")
    assert others == [path] * 2


@pytest.mark.parametrize("begin", ["source <(pytorch-stage)", "srun -n2 -N2 conda-python-distributed -c pass"])
def test_a_node_that_has_lost_its_copy_gets_another_one(job, begin):
    """At the next step, whether the process that has staged is still there or has ended with its step."""
    output, errors = job(f"""export PYTORCH_LAUNCH_STAGE=1
{begin}
for pid in $(pgrep -f 'python3 -I -S -c.*PYTORCH_STAGE_SOURCES'); do
    of=$(tr '\\0' '\\n' < /proc/$pid/environ | grep -cxE "SLURM_JOB_ID=$SLURM_JOB_ID|SLURM_PROCID=0")
    [ "$of" != 2 ] || kill -KILL $pid
done
srun -n2 -N2 conda-python-distributed probe.py""")
    assert len(re.findall(r"^\d True /proc/\d+/fd/\d+$", output, re.MULTILINE)) == 2, errors
    assert errors.count("staged on 2 nodes") == 2, errors


#: Kills one process of the staging after some seconds; prints what was killed.
KILLER = """
killer() { sleep $1
  pids=()
  for pid in $(pgrep -f "pytorch_stage/__main__.py|PYTORCH_STAGE_SOURCES|^(sbcast|srun) --jobid="); do
    tr '\\0' '\\n' 2>/dev/null </proc/$pid/environ | grep -qx SLURM_JOB_ID=$SLURM_JOB_ID && pids+=($pid)
  done
  (( ${#pids[@]} )) && victim=${pids[$2 % ${#pids[@]}]} && kill -KILL $victim && echo "killed one of ${#pids[@]}"; }
"""


@pytest.mark.parametrize(
    ("mode", "count"),
    [("1", 2), *(pytest.param(mode, 20, marks=pytest.mark.thorough) for mode in ("1", "sbcast"))],
)
def test_a_kill_at_any_moment_leaves_no_file_and_the_next_step_has_a_whole_copy(testbed, job, disk, mode, count):
    choose = random.Random(count)  # noqa: S311  (moments)
    for _ in range(count):
        seconds, number = choose.uniform(0, 1.5), choose.randrange(100)
        output, errors = job(f"""{KILLER}
export PYTORCH_LAUNCH_STAGE={mode}
killer {seconds:.2f} {number} &
source <(pytorch-stage)
wait %1
srun -n2 -N2 conda-python-distributed probe.py""")
        assert len(re.findall(r"^\d True /", output, re.MULTILINE)) == 2, f"{seconds} {number}\n{output}\n{errors}"
        assert left_soon(testbed) == [], f"{seconds} {number}\n{output}\n{errors}"
