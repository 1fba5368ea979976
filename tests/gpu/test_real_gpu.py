"""A real GPU: the device of a rank, nccl, and the report; run by pytest's own Python, skipped without a GPU."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from repository import TREE

PROBE = """
import json, os, torch, torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
total = torch.ones(1, device=device)
dist.all_reduce(total)
dist.destroy_process_group()
properties = torch.cuda.get_device_properties(device)
print(json.dumps({"count": torch.cuda.device_count(), "total": total.item(), "bus": properties.pci_bus_id}))
"""


@pytest.fixture(scope="module", autouse=True)
def gpu():
    """Skips the test if torch sees no GPU."""
    if not any(Path(path).is_dir() and os.listdir(path) for path in ("/proc/driver/nvidia/gpus", "/sys/class/kfd")):
        pytest.skip("no GPU on this machine")
    seen = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.cuda.is_available())"],
        capture_output=True,
        text=True,
        check=False,
    )
    if seen.stdout.strip() != "True":
        pytest.skip(f"the torch of {sys.executable} sees no GPU")


def launch(*arguments, **variables):
    """Run `conda-python-distributed`; return its standard output and error."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [TREE / "runscripts" / "conda-python-distributed", *arguments],
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_the_device_that_is_reported_is_the_one_that_torch_uses_with_nccl():
    output, message = launch("-c", PROBE, PYTORCH_LAUNCH_VERBOSE="1")
    found = json.loads(output)
    assert found["total"] == 1
    assert f"device 0 of {found['count']} " in message
    assert f":{found['bus']:02x}:" in message


def test_one_visible_gpu_is_device_0_of_every_rank():
    output, _ = launch("-c", PROBE, CUDA_VISIBLE_DEVICES="0")
    assert json.loads(output)["count"] == 1


TIMED_WITHOUT_WAITING = f"""
import sys
sys.path.insert(0, {str(TREE / "payload")!r})
import torch
from training.distributed import process_group
from training.health import Health
with process_group({{}}, use_gpu=True, timeout=60) as world:
    model, batch = torch.nn.Linear(4096, 4096, device=world.device), torch.ones(4096, 4096, device=world.device)
    health = Health(world, print)
    health.watch(model)
    torch.cuda.set_sync_debug_mode("error")
    for _ in health.batches(range(33)):
        model(batch).sum().backward()
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    values = health.end_epoch("epoch 1/1")
    assert 1e-5 < values["step_seconds_alone"] < 1, values
"""


def test_the_time_alone_is_measured_without_waiting_for_the_gpu():
    output, _ = launch("-c", TIMED_WITHOUT_WAITING)
    assert output.startswith("epoch 1/1  slowest rank 0 ("), output


def test_the_slowest_rank_is_reported_with_its_gpu():
    output, _ = launch(str(TREE / "payload" / "mnist_ddp.py"), "--gpu", "--epochs", "1", "--health")
    line = r"epoch 1/1  slowest rank 0 \(\S+, GPU 0( at \S+)?\): \S+ ms alone per step, 1.00 times the median$"
    assert re.search(line, output, re.MULTILINE), output


@pytest.mark.parametrize("options", [(), ("--bf16",), ("--compile",)], ids=["float32", "bf16", "compiled"])
def test_a_resumed_training_on_the_gpu_reaches_the_weights_of_an_uninterrupted_one(tmp_path, options):
    """With batches of 250, which divide the 6000 digits, and of 256, which leave a smaller last batch."""
    torch = pytest.importorskip("torch")
    for size in ("250", "256"):
        line = [str(TREE / "payload" / "mnist_ddp.py"), "--gpu", "--epochs", "2", "--batch-size", size, *options]
        through = tmp_path / f"through-{size}"
        parts = tmp_path / f"parts-{size}"
        launch(*line, "--modelpath", str(through))
        launch(*line, "--modelpath", str(parts))
        (last,) = (parts / "checkpoints").glob("epoch-0002-*")
        last.unlink()
        output, _ = launch(*line, "--modelpath", str(parts))
        assert "backend nccl, device cuda:0" in output
        assert "resuming after 1 epochs and 0 steps" in output
        one, other = (torch.load(path / "mnist_ddp.pt", weights_only=True) for path in (through, parts))
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_all_reduce_check_passes_with_nccl_and_reads_its_log():
    output, _ = launch(str(TREE / "payload" / "allreduce_check.py"), "--gpu", "--max-size", "16M")
    lines = output.splitlines()
    assert lines[0].startswith("all-reduce check: ranks 1, nodes 1, backend nccl, device cuda:0")
    assert "sums: right in all 23 sizes on all ranks" in lines
    assert lines[-1] == "all-reduce check: ok"


def test_nccl_writes_its_log_where_the_all_reduce_check_reads_it():
    code = f"""
import os, sys
sys.path.insert(0, {str(TREE / "payload")!r})
import allreduce_check as check
read = check.log_nccl(os.environ)
{PROBE}
print(read())
"""
    output, _ = launch("-c", code)
    assert "NCCL INFO" in output and "Using network" in output


def test_the_doctor_sees_the_gpus_and_that_torch_computes_with_their_driver(tmp_path):
    easybuild = tmp_path / "easybuild"
    easybuild.mkdir()
    kind = "cuda" if Path("/proc/driver/nvidia/version").exists() else "rocm"
    (easybuild / "PyTorch.eb").write_text(f"easyblock = 'EB_PyTorchVenv'\ngpu = {kind!r}\n")
    done = subprocess.run(
        [TREE / "runscripts" / "pytorch-doctor", "--only", "gpu", "--json"],
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "EBROOTPYTORCH": str(tmp_path),
            "WITH_CONDA": "true",
            "WITH_VENV": "true",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["verdict"] for row in json.loads(done.stdout)["checks"]] == ["ok"]
