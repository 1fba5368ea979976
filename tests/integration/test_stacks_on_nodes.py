"""`pytorch-stacks` on the testbed: planted hangs, by an ordinary user, in the container and the venv."""

import os
import time

import pytest

pytestmark = pytest.mark.testbed

#: Of four ranks, 1 sleeps where it reads a batch, 2 skips a collective, 3 waits for its own lock, and 0 waits for all.
HANGS = """\
import threading
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, lock = dist.get_rank(), threading.Lock()

def next_batch():
    if rank == 1:
        time.sleep(3600)  # rank 1
    return torch.ones(4)

def log_step():
    if rank == 3:
        lock.acquire()
    with lock:  # rank 3
        return

def train():
    batch = next_batch()
    log_step()
    if rank != 2:
        dist.all_reduce(batch)  # rank 0
    dist.barrier()  # rank 2

train()
"""
PLACES = ("all_reduce", "next_batch", "barrier", "log_step")


@pytest.fixture
def by_user(testbed, module, enter, work):
    """Shell code before a command that runs it as an ordinary user, if one can use the module here; else nothing."""
    home = work / "home"
    home.mkdir()
    work.chmod(0o755)
    if os.geteuid() != 0:
        return ""
    os.chown(home, 65534, 65534)
    prefix = f"env HOME={home} TMPDIR={home} setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all "
    # on a node, where root's privileges are gone: the venv's Python may be below a home directory
    script = f"module load {module} && {prefix}srun -N1 -n1 {enter}python -c 'import torch'"
    return prefix if testbed.run_unchecked(script, cwd=work).returncode == 0 else ""


@pytest.mark.parametrize("module", ["container", pytest.param("venv", marks=pytest.mark.thorough)], indirect=True)
def test_each_hanging_rank_is_named_with_its_node_and_line(testbed, module, enter, by_user, work):
    (work / "hangs.py").write_text(HANGS)
    source = HANGS.splitlines()
    lines = [next(number for number, line in enumerate(source, 1) if f"# rank {rank}" in line) for rank in range(4)]
    wanted = {
        f"rank {rank} (nid00100{1 + rank // 2}) in {place} at hangs.py:{line}"
        for rank, (place, line) in enumerate(zip(PLACES, lines))
    }
    name = f"hangs-{os.getpid()}"
    step = f"{by_user}srun -N2 -w nid001001,nid001002 --ntasks-per-node=2 --overcommit --job-name={name}"
    start = f"module load {module}\n{step} {enter}conda-python-distributed hangs.py &>{work}/home/log & sleep 1"
    testbed.run(start, cwd=work)
    job = f"$(squeue --noheader --name={name} --states=RUNNING --format=%A)"
    try:
        deadline = time.monotonic() + 600
        found = []
        while not wanted <= set(found) and time.monotonic() < deadline:
            time.sleep(2)  # the ranks import torch meanwhile
            shown = testbed.run_unchecked(f"module load {module}\n{by_user}pytorch-stacks {job}.0", cwd=work)
            found = shown.stdout.splitlines()
        assert wanted <= set(found), f"{found}\n{(work / 'home' / 'log').read_text()}"
        assert found[0].endswith(", step 0: 4 ranks on 2 nodes")
    finally:
        testbed.run(f"scancel --name={name}")
