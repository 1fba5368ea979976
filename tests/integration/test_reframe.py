"""tests/reframe on the testbed, run like by support staff: `reframe -r` after ./demo --env."""

import json
import re
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.testbed


@pytest.fixture
def reframe(testbed, venv, dataset, work):
    """A function that runs ReFrame on the testbed; returns its status and output. Its files go to `work`."""
    suite = testbed.layout.repository / "tests/reframe"
    command = Path(sys.executable).with_name("reframe")

    def run(options, timeout=900):
        result = testbed.run_unchecked(
            f"{command} --nocolor -C {suite}/sites/testbed.py -c {suite} --prefix {work} "
            f"--report-file {work}/report.json -r {options}",
            cwd=work,
            timeout=timeout,
        )
        return result.returncode, result.stdout + result.stderr

    return run


def test_reframe_submits_a_job_and_checks_the_modules_interface(reframe, work):
    status, output = reframe("-n ModuleInterface -p venv")
    assert status == 0, output
    (case,) = json.loads((work / "report.json").read_text())["runs"][0]["testcases"]
    assert case["result"] == "pass" and case["system"] == "testbed"


@pytest.mark.thorough
def test_all_tests_pass_on_the_testbed_and_are_reported_with_their_performance(reframe, container, work):
    status, output = reframe("--performance-report", timeout=3600)
    assert status == 0, output
    cases = json.loads((work / "report.json").read_text())["runs"][0]["testcases"]
    assert len(cases) == 44 and all(case["result"] == "pass" for case in cases), output
    logs = {path.name for path in work.glob("perflogs/testbed/*/*.log")}
    assert {"AllReduce.log", "TrainMNIST.log", "TrainLanguageModel.log", "InstallRecipe.log"} <= logs
    for variable in ("busbw_16MiB", "latency_4B", "accuracy", "images_per_second", "tokens_per_second"):
        assert re.search(rf"│ {variable} +│", output), output
