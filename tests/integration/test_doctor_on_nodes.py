"""The doctor on the testbed: no findings with the module, and each fault is named with its remedy."""

import json
import re

import pytest

pytestmark = pytest.mark.testbed


@pytest.fixture
def doctor(testbed):
    """A function that runs the doctor with a module loaded; returns its exit status and its findings by check."""

    def run(module, arguments="", *, before="", command="pytorch-doctor"):
        result = testbed.run_unchecked(f"module load {module} || exit 9\n{before}\n{command} --json {arguments}")
        assert result.returncode in (0, 1), result.stderr
        found = json.loads(result.stdout.splitlines()[-1])
        return result.returncode, {row["check"]: row for row in found["checks"]}

    return run


# No findings


def test_all_is_well_on_the_login_node(testbed, module):
    output = testbed.run(f"module load {module}\npytorch-doctor")
    table = [line.split()[:2] for line in output.splitlines()[1:-1]]
    assert {verdict for _, verdict in table} == {"ok", "n.a."}, output
    verdicts = dict(table)
    assert [verdicts[name] for name in ("module", "torch", "disk")] == ["ok"] * 3
    assert re.fullmatch(r"\S+: \d+ ok, \d+ n\.a\.", output.splitlines()[-1])


@pytest.mark.parametrize("module", ["container", pytest.param("venv", marks=pytest.mark.thorough)], indirect=True)
def test_all_is_well_in_a_step_where_one_task_reports_for_each_node(testbed, module):
    output = testbed.run(f"module load {module}\nsrun -N2 --ntasks-per-node=2 pytorch-doctor --faults")
    lines = output.splitlines()
    assert len(lines) == 2, output
    assert all(re.fullmatch(r"nid\d+: \d+ ok, \d+ n\.a\.", line) for line in lines), output


def test_all_is_well_inside_the_image(testbed, container):
    output = testbed.run(f"module load {container}\nsrun -n1 singularity exec $SIF pytorch-doctor")
    assert re.search(r"^nid\d+: \d+ ok, \d+ n\.a\.$", output, re.MULTILINE), output


# Planted faults


def test_an_image_with_a_damaged_inside_does_not_start_and_the_runtime_reports_why(doctor, container, work):
    copy = work / "damaged.sif"
    # of the right size, with its header alone
    before = f"head -c 32768 $SIF > {copy}; truncate -r $SIF {copy}; export SIFPYTORCH={copy}"
    status, found = doctor(container, "--only torch", before=before)
    row = found["torch"]
    assert (status, row["verdict"]) == (1, "FAIL")
    assert row["finding"].startswith("python does not import torch: ") and "install the module again" in row["remedy"]
