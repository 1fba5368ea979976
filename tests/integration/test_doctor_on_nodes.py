"""The doctor on the testbed: no findings with the module, and each fault is named with its remedy."""

import json
import os
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


def assert_named(found, check, finding, remedy, verdict="FAIL"):
    """Assert that a check has this verdict, and that finding and remedy match these patterns."""
    row = found[check]
    assert row["verdict"] == verdict and re.search(finding, row["finding"]) and re.search(remedy, row["remedy"]), row


# No findings


def test_all_is_well_on_the_login_node(testbed, module):
    output = testbed.run(f"module load {module}\npytorch-doctor")
    table = [line.split()[:2] for line in output.splitlines()[1:-1]]
    assert {verdict for _, verdict in table} == {"ok", "n.a."}, output
    verdicts = dict(table)
    assert [verdicts[name] for name in ("module", "torch", "caches", "home")] == ["ok"] * 4
    assert re.fullmatch(r"\S+: \d+ ok, \d+ n\.a\.", output.splitlines()[-1])


@pytest.mark.parametrize("module", ["container", pytest.param("venv", marks=pytest.mark.thorough)], indirect=True)
def test_all_is_well_in_a_step_where_one_task_reports_for_each_node(testbed, module):
    output = testbed.run(f"module load {module}\nsrun -N2 --ntasks-per-node=2 pytorch-doctor --faults")
    lines = output.splitlines()
    assert len(lines) == 2, output
    assert all(re.fullmatch(r"nid\d+: \d+ ok, \d+ n\.a\.", line) for line in lines), output


def test_all_is_well_inside_the_image(testbed, container):
    output = testbed.run(f"module load {container}\nsrun -n1 singularity exec $SIF pytorch-doctor")
    assert "in its image" in output
    assert re.search(r"^nid\d+: \d+ ok, \d+ n\.a\.$", output, re.MULTILINE), output


# Planted faults


def test_an_image_with_a_damaged_inside_does_not_start_and_the_runtime_reports_why(doctor, container, work):
    copy = work / "damaged.sif"
    # of the right size, with its header alone
    before = f"head -c 32768 $SIF > {copy}; truncate -r $SIF {copy}; export SIFPYTORCH={copy}"
    _, found = doctor(container, "--only image", before=before)
    assert_named(found, "image", r"damaged\.sif does not start: .+", "eb --rebuild")


def test_nodes_without_addresses_and_tasks_without_cores_are_named(doctor, venv):
    gone = "srun -n1 env SLURM_STEP_NODELIST=no-such-host.invalid pytorch-doctor"
    _, found = doctor(venv, "--only slurm", command=gone)
    assert_named(found, "slurm", "node no-such-host.invalid of this job has no address", "export MASTER_ADDR=")
    crowd = 2 * len(os.sched_getaffinity(0))
    status, found = doctor(venv, "--only slurm", command=f"srun -N1 -n{crowd} --overcommit pytorch-doctor")
    assert status == 0
    assert_named(found, "slurm", f"^{crowd} ranks share ", "request more cores for the job", verdict="warn")
