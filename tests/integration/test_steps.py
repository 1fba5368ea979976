"""A user's command line on the cluster: its world, and what it takes from the host."""

import re

import pytest
from meeting import MEET

pytestmark = pytest.mark.testbed

#: Two nodes by name, even if they are busy.
PAIR = "srun -N2 -w nid001001,nid001002"
#: Prints the variables of one rank, and how many ranks have met; the demo has four ranks with torch.
PROBE = f"""{MEET}
names = ['RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'GROUP_RANK', 'MASTER_ADDR', 'MASTER_PORT']
words = [socket.gethostname(), str(found), *[os.environ[name] for name in names]]
os.write(1, (' '.join(words) + '\\n').encode())  # in one write: srun mixes the partial writes of ranks
"""


def test_four_ranks_on_two_nodes_form_one_world(testbed, module, enter, work):
    (work / "probe.py").write_text(PROBE)
    line = f"{PAIR} --ntasks-per-node=2 {enter}conda-python-distributed -u probe.py"
    output = testbed.run(f"module load {module}\n{line}", cwd=work)
    ranks = sorted(line.split() for line in output.splitlines() if line)
    assert [rank[:7] for rank in ranks] == [
        ["nid001001", "4", "0", "4", "0", "2", "0"],
        ["nid001001", "4", "1", "4", "1", "2", "0"],
        ["nid001002", "4", "2", "4", "0", "2", "1"],
        ["nid001002", "4", "3", "4", "1", "2", "1"],
    ]
    assert {rank[7] for rank in ranks} == {"nid001001"}
    assert len({rank[8] for rank in ranks}) == 1


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("container", "conda-python-distributed -c"),
        ("venv", "conda-python-simple -c"),
        pytest.param("container", "conda-python-simple -c", marks=pytest.mark.thorough),
        pytest.param("venv", "conda-python-distributed -c", marks=pytest.mark.thorough),
    ],
    indirect=["module"],
)
def test_another_torch_on_the_host_is_not_imported(testbed, module, enter, work, line):
    """Exported after loading the module, where torch is imported, and before, where it is looked for."""
    for name in ("python", "libraries", "own"):
        (work / name).mkdir()
    (work / "python" / "torch.py").write_text("raise SystemExit('the poisoned one')")
    (work / "libraries" / "libc10.so").write_text("not a library")
    (work / "own" / "own.py").write_text("here = True")
    poison = f"""
export PYTHONPATH={work}/python:{work}/own LD_LIBRARY_PATH={work}/libraries
export HOME={work}/home
for minor in $(seq 8 20); do
    mkdir -p $HOME/.local/lib/python3.$minor/site-packages
    cp {work}/python/torch.py $HOME/.local/lib/python3.$minor/site-packages
done
"""
    imported = "import own, torch; print(own.here, torch.__file__)"
    found = "import importlib.util as u, own; print(own.here, u.find_spec('torch').origin)"
    load = f"module load {module}\n"
    run = f"srun -n1 {enter}{line}"
    output = testbed.run(f'{load}{poison}{run} "{imported}"')
    output += testbed.run(f'{poison}{load}{run} "{found}"')
    assert re.fullmatch(r"(True /\S+/torch/__init__\.py\n){2}", output)
    assert str(work) not in output
