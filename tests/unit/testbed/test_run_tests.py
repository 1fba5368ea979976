"""./run-tests: what it installs and what it runs, for its options."""

import shutil
import subprocess
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[3]


@pytest.fixture
def run_tests(tmp_path):
    """Run a copy of ./run-tests beside programs that only record their arguments; return these lines."""
    commands = tmp_path / "testbed-root" / "test-venv" / "bin"
    commands.mkdir(parents=True)
    (tmp_path / "testbed").mkdir()
    shutil.copy(TREE / "run-tests", tmp_path)
    programs = [commands / name for name in ("python", "ruff", "codespell", "shellcheck", "mypy", "git")]
    for path in (tmp_path / "testbed/host-python", *programs):
        path.write_text(f'#!/bin/sh\necho "${{0##*/}} $*" >>{tmp_path}/calls\n[ "$*" != "testbed status" ]\n')
        path.chmod(0o755)

    def run(*options):
        env = {"PATH": f"{commands}:/usr/bin:/bin", "PYTORCH_TESTBED": str(tmp_path / "testbed-root")}
        subprocess.run([tmp_path / "run-tests", *options], env=env, capture_output=True, check=True, timeout=300)
        calls = (tmp_path / "calls").read_text().splitlines()
        return [call for call in calls if call != "host-python testbed image"]  # it runs beside the others

    return run


@pytest.mark.parametrize(
    ("options", "end"),
    [("--fast", "--fast tests/unit"), ("-k x --fast", "-k x --fast tests/unit"), ("--fast tests/x", "--fast tests/x")],
)
def test_fast_needs_no_cluster(run_tests, options, end):
    calls = run_tests(*options.split())
    assert [call for call in calls if call.startswith("host-python")] == ["host-python testbed tools"]
    assert calls[-1].endswith(f"--durations=20 {end}")


@pytest.mark.parametrize("options", ["--thorough", "--thorough -k x", "tests/unit/x.py"])
def test_other_runs_start_the_cluster_and_stop_it(run_tests, options):
    end = options if options.startswith("tests") else f"{options} tests".strip()
    calls = run_tests(*options.split())
    assert {f"host-python testbed {verb}" for verb in ("tools", "up", "optional")} <= set(calls)
    assert any(call.endswith(f"--durations=20 {end}") for call in calls)
    assert any("coverage report" in call for call in calls) is (end == "--thorough tests")
    assert calls[-1] == "host-python testbed stop"
