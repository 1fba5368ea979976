"""The demo, and the shell that it provides."""

import os
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.testbed, pytest.mark.early]

DEMO = Path(__file__).resolve().parents[2] / "demo"


def run(*command, **settings):
    """Run a command; return the completed process."""
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "check": False, "timeout": 3600}
    return subprocess.run(command, **options, **settings)


def test_the_demo_trains_mnist_to_97_percent_in_one_epoch_on_four_ranks_of_two_nodes(testbed, mnist_files):
    """It shows each command, and ends with accuracy, speed and next steps."""
    result = run(DEMO)
    assert result.returncode == 0, result.stdout + result.stderr
    output, summary = result.stdout.split("Done in ")
    assert re.findall(r"^\$ (\S+)", output, re.MULTILINE) == ["eb", "eb", "eb", "module", "module", "srun"]
    assert "world size 4," in output and "60000 training and 10000 test images" in output
    assert re.search(r"^ *epoch 1/1  loss \d\.\d+  test accuracy \d+\.\d\d %  images/s \d+$", output, re.MULTILINE)
    assert re.search(r"^ *training time: \d+\.\d s$", output, re.MULTILINE)
    assert float(re.search(r"test accuracy ([\d.]+) %", summary)[1]) >= 97
    assert re.search(r"\d+ images/s on 2 nodes", summary)
    assert str(testbed.layout.easybuild) in summary
    assert 'eval "$(./demo --env)"' in summary


def test_the_env_option_provides_the_commands_in_any_directory(testbed, tmp_path):
    script = f'eval "$({DEMO} --env)" && type module eb srun >/dev/null && module -t list 2>&1 && srun -N1 hostname'
    result = run("bash", "-c", script, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[0] == "pytorch-easybuild"
    assert result.stdout.split()[-1].startswith("nid00100")


def test_evaluating_it_again_keeps_the_container_runtime(testbed, container, tmp_path):
    evaluate = f'eval "$({DEMO} --env)"'
    show = "singularity --version; echo $EASYBUILD_PREFIX; echo $EASYBUILD_INSTALLPATH; srun -N1 hostname"
    script = f"{evaluate}\nmodule load {container}\n{evaluate}\n{evaluate}\n{show}"
    allocation = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "elsewhere", "EASYBUILD_INSTALLPATH": "/elsewhere"}
    result = run("bash", "-c", script, cwd=tmp_path, env={**os.environ, **allocation})
    assert result.returncode == 0, result.stderr
    version, prefix, install_path, node = result.stdout.splitlines()
    assert "version" in version
    assert prefix == install_path == str(testbed.layout.easybuild)
    assert node.startswith("nid00100")


@pytest.mark.parametrize("options", [("--nonsense",), ("--env", "--shell")])
def test_an_unknown_option_prints_the_usage(options):
    result = run(DEMO, *options)
    assert result.returncode == 2
    assert result.stderr.startswith("Usage: ./demo")
