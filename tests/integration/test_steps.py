"""A user's command line on the cluster: its world, its output and its exit status."""

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


def test_the_hosts_own_command_enters_the_image_by_itself(testbed, container, probe):
    output = testbed.run(f"module load {container}\nsrun -N1 -n2 conda-python-distributed probe.py", cwd=probe)
    assert [line.split()[1] for line in output.splitlines()] == ["2", "2"]


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


@pytest.mark.parametrize("module", ["container", pytest.param("venv", marks=pytest.mark.thorough)], indirect=True)
def test_pythons_exit_status_is_the_steps(testbed, module, enter):
    result = testbed.run_unchecked(
        f"module load {module}\nsrun -n1 {enter}conda-python-distributed -c 'raise SystemExit(7)'"
    )
    assert result.returncode == 7


@pytest.mark.parametrize("module", ["container", pytest.param("venv", marks=pytest.mark.thorough)], indirect=True)
def test_verbose_prints_one_line_per_rank(testbed, module, enter):
    result = testbed.run_unchecked(
        f"module load {module}\nexport PYTORCH_LAUNCH_VERBOSE=1\n{PAIR} -n2 {enter}conda-python-distributed -c pass"
    )
    lines = sorted(line for line in result.stderr.splitlines() if "rank" in line)
    assert len(lines) == 2
    for rank, line in enumerate(lines):
        assert re.search(rf"nid00100{rank + 1}.*rank {rank} of 2.*nid001001:\d+", line)
