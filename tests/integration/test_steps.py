"""A user's command line on the cluster: its world, and what it takes from the host."""

import re

import pytest
from meeting import MEET

from testbed.stand_ins.job_scripts import submission

pytestmark = pytest.mark.testbed

#: Two nodes by name, even if they are busy.
PAIR = "srun -N2 -w nid001001,nid001002"
#: Prints the variables of one rank, and how many ranks have met; the demo has four ranks with torch.
PROBE = f"""{MEET}
names = ['RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'GROUP_RANK', 'MASTER_ADDR', 'MASTER_PORT']
print(socket.gethostname(), found, *[os.environ[name] for name in names])
"""


@pytest.fixture
def probe(work):
    """The directory that holds the probe as a file."""
    (work / "probe.py").write_text(PROBE)
    return work


def test_four_ranks_on_two_nodes_form_one_world(testbed, module, enter, probe):
    output = testbed.run(
        f"module load {module}\n{PAIR} --ntasks-per-node=2 {enter}conda-python-distributed -u probe.py",
        cwd=probe,
    )
    ranks = sorted(line.split() for line in output.splitlines() if line)
    assert [rank[:7] for rank in ranks] == [
        ["nid001001", "4", "0", "4", "0", "2", "0"],
        ["nid001001", "4", "1", "4", "1", "2", "0"],
        ["nid001002", "4", "2", "4", "0", "2", "1"],
        ["nid001002", "4", "3", "4", "1", "2", "1"],
    ]
    assert {rank[7] for rank in ranks} == {"nid001001"}
    assert len({rank[8] for rank in ranks}) == 1


def test_a_batch_script_without_srun_is_a_world_of_one(testbed, venv, probe):
    script = probe / "job.sh"
    script.write_text("#!/bin/bash\nconda-python-distributed probe.py\n")
    job = submission("job.sh", "-N2 -n4 -o job.out")
    testbed.run(f"module load {venv}\n{job}", cwd=probe)
    warning, line = (probe / "job.out").read_text().splitlines()
    assert "only one process in an allocation of 4 tasks" in warning
    assert line.split()[1:4] == ["1", "0", "1"]


@pytest.mark.parametrize("module", ["container", pytest.param("venv", marks=pytest.mark.thorough)], indirect=True)
def test_pythons_own_options_and_arguments_arrive_unchanged(testbed, module, enter):
    code = "import sys; print(sys.argv[1:], sys.stdout.write_through)"
    output = testbed.run(
        f"""module load {module}
srun -n1 {enter}conda-python-distributed -u -c "{code}" --lr 0.1 'two words' '$HOME' ''
srun -n1 {enter}conda-python-distributed -m json.tool --help"""
    )
    assert output.splitlines()[0] == "['--lr', '0.1', 'two words', '$HOME', ''] True"
    assert "usage: python" in output


@pytest.mark.parametrize("module", [pytest.param("container", marks=pytest.mark.thorough), "venv"], indirect=True)
def test_several_ranks_do_not_wait_for_a_name_server_that_does_not_answer(testbed, module, enter):
    """`benchmarks/run --only dead-dns` measures the difference."""
    code = "import os; os.write(1, (os.environ.get('RES_OPTIONS', 'untouched') + chr(10)).encode())"
    line = f'{enter}conda-python-distributed -c "{code}"'
    output = testbed.run(f"""module load {module}
srun -n1 {line}
srun -n2 {line}
RES_OPTIONS=ndots:2 srun -n2 {line}""")
    assert output.splitlines() == ["untouched", *["timeout:1 attempts:1"] * 2, *["ndots:2"] * 2]


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
    load, run = f"module load {module}\n", f"srun -n1 {enter}{line}"
    output = testbed.run(f'{load}{poison}{run} "{imported}"')
    output += testbed.run(f'{poison}{load}{run} "{found}"')
    assert re.fullmatch(r"(True /\S+/torch/__init__\.py\n){2}", output)
    assert str(work) not in output


@pytest.mark.parametrize("module", ["container", pytest.param("venv", marks=pytest.mark.thorough)], indirect=True)
def test_a_payload_that_does_not_exist_is_one_line_for_each_node(testbed, module, enter):
    result = testbed.run_unchecked(
        f"module load {module}\nsrun -N1 -n2 {enter}conda-python-distributed -u /no/such/train.py"
    )
    assert result.returncode in (2, 143)  # of the rank, or of a rank that srun ended because of it
    lines = [line for line in result.stderr.splitlines() if "train.py" in line]
    assert len(lines) == 1
    assert lines[0].startswith("conda-python-distributed: ")
