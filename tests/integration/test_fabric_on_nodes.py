"""Names and interfaces of a fast network that a profile describes: where the ranks of two real nodes meet."""

import shlex
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.testbed

PROFILES = Path(__file__).parents[2] / "modulefiles" / "cluster"
PAIR = "srun -N2 -w nid001001,nid001002"
#: Prints the rendezvous, gloo's interface and the address of rank 0, to which each rank connects: without torch, whose
#: import takes 2 CPU seconds. Rank 0 listens, unless an agent of torchrun does.
PROBE = """
import os, socket, time
master, port, size = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']), os.environ['WORLD_SIZE']
if os.environ['RANK'] == '0' and os.environ.get('TORCHELASTIC_USE_AGENT_STORE') != 'True':
    with socket.create_server(('', port)) as server:
        for other in range(int(size) - 1):
            server.accept()
    address = socket.gethostbyname(master)
else:
    while True:
        try:
            with socket.create_connection((master, port)) as connection:
                address = connection.getpeername()[0]
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
words = [socket.gethostname(), size, master, os.environ.get('GLOO_SOCKET_IFNAME', '-'), address]
os.write(1, ' '.join(words).encode() + b'\\n')
"""


@pytest.fixture
def site(testbed, venv, work):
    """A function that runs a script with the module, whose profile names this testbed's second network."""
    (work / "cluster").mkdir()
    shutil.copy(PROFILES / ".policy.tcl", work / "cluster")
    text = (PROFILES / "local").read_text()
    assert "policy " not in text
    lines = 'policy PYTORCH_FABRIC_NAME *i\npolicy PYTORCH_SOCKET_IFNAME "hsn0 lo"\n'
    (work / "cluster" / "local").write_text(text + lines)
    (work / "probe.py").write_text(PROBE)
    if testbed.run_unchecked("srun -n1 getent hosts nid001001i").returncode:
        pytest.skip("this machine denies namespaces: its nodes have no names of their own")

    def run(script):
        result = testbed.run_unchecked(f"module use {work} && module load {venv} || exit 9\n{script}", cwd=work)
        assert result.returncode == 0, result.stderr
        return [line.split() for line in sorted(result.stdout.splitlines())], result.stderr

    return run


def test_ranks_on_two_nodes_meet_at_the_first_ones_name_on_the_fast_network(site):
    ranks, messages = site(f"{PAIR} --ntasks-per-node=2 conda-python-distributed probe.py")
    nodes = ["nid001001"] * 2 + ["nid001002"] * 2
    assert ranks == [[node, "4", "nid001001i", "lo", "127.0.1.1"] for node in nodes]
    assert "FABRIC" not in messages
    assert "IFNAME" not in messages


def test_nodes_that_resolve_different_names_still_meet(site):
    second = "test $SLURM_NODEID = 0 || export PYTORCH_FABRIC_NAME='*-ib'; exec conda-python-distributed probe.py"
    ranks, messages = site(f"{PAIR} --ntasks-per-node=1 bash -c {shlex.quote(second)}")
    assert ranks == [
        ["nid001001", "2", "nid001001i", "lo", "127.0.1.1"],
        ["nid001002", "2", "nid001001", "lo", "127.0.0.1"],
    ]
    assert messages.count(" does not resolve on nid001002: using nid001001. Correct PYTORCH_FABRIC_NAME") == 1


def test_torchruns_workers_meet_at_a_name_on_the_fast_network(site):
    ranks, _ = site(f"{PAIR} --ntasks-per-node=1 torchrun-distributed --nproc-per-node=1 probe.py")
    assert [rank[:2] for rank in ranks] == [["nid001001", "2"], ["nid001002", "2"]]
    ((master, address),) = {(rank[2], rank[4]) for rank in ranks}
    assert (master, address) in {("nid001001i", "127.0.1.1"), ("nid001002i", "127.0.1.2")}
