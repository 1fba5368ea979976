"""The doctor on the testbed: no findings with the module, on host and nodes; tests/unit/runscripts has the faults."""

import re

import pytest

pytestmark = pytest.mark.testbed


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
