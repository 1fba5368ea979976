"""Invalid input: one line of error, and a non-zero exit status."""

import re

import pytest

pytestmark = pytest.mark.testbed


@pytest.mark.parametrize("module", [pytest.param("container", marks=pytest.mark.thorough), "venv"], indirect=True)
def test_a_truncated_training_file_ends_the_run_with_one_line(testbed, module, enter, dataset, work):
    testbed.run(f"module load {dataset}; cp $MNIST_ROOT/*ubyte {work}; truncate -s 9999 {work}/t10k-im*")
    result = testbed.run_unchecked(
        f"""module load {module}
srun -N2 -n2 {enter}conda-python-distributed $PAYLOAD/mnist_ddp.py --epochs 1 --data {work}"""
    )
    assert result.returncode != 0
    # Slurm's own lines begin with srun:, slurmstepd: or slurmstepd-nid001001:
    lines = [line for line in result.stderr.splitlines() if not re.match(r"(srun|slurmstepd)(-\w+)?: ", line)]
    assert len(lines) == 1, result.stderr
    assert "t10k-images-idx3-ubyte" in lines[0]


@pytest.mark.parametrize("module", ["container", pytest.param("venv", marks=pytest.mark.thorough)], indirect=True)
def test_a_payload_that_does_not_exist_is_one_line_for_each_node(testbed, module, enter):
    result = testbed.run_unchecked(
        f"module load {module}\nsrun -N1 -n2 {enter}conda-python-distributed -u /no/such/train.py"
    )
    assert result.returncode in (2, 143)  # of the rank, or of a rank that srun ended because of it
    lines = [line for line in result.stderr.splitlines() if "train.py" in line]
    assert len(lines) == 1
    assert lines[0].startswith("conda-python-distributed: ")


@pytest.mark.parametrize("module", [pytest.param("container", marks=pytest.mark.thorough), "venv"], indirect=True)
def test_a_node_list_that_cannot_be_parsed_is_an_error_and_never_localhost(testbed, module, enter):
    result = testbed.run_unchecked(
        f"""module load {module}
srun -n1 bash -c 'SLURM_STEP_NODELIST="nid[0010" {enter}conda-python-distributed --dry-run'"""
    )
    assert result.returncode == 2
    assert "nid[0010" in result.stderr
    assert "MASTER_ADDR" not in result.stdout
