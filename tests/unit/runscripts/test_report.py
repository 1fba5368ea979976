"""The line about one rank."""

from types import SimpleNamespace

from pytorch_launch.launchers import discover
from pytorch_launch.plan import Plan
from pytorch_launch.report import device, line


class NoDevices:
    vendor = index = gpu = None
    count = 0


class Placement:
    bind = cpus = {8, 9}
    numa = [1]


def plan(env, **fields):
    """A Plan with what the report needs of it."""
    fields = {
        "caches": "/tmp/pytorch-1000/7-nid001003",  # noqa: S108
        "changes": {"MASTER_ADDR": "nid001002", "MASTER_PORT": "10427", "OMP_NUM_THREADS": "2"},
        **fields,
    }
    missing = dict.fromkeys(Plan.__slots__)
    decisions = {"world": discover(env, "vm"), "devices": NoDevices, "placement": Placement, "bind": Placement.bind}
    return Plan(**{**missing, **decisions, "env": env, **fields})


def test_the_line_reports_what_was_decided_and_why(step):
    assert line(plan(step)) == (
        "nid001003: rank 3 of 4, local rank 1 of 2, node rank 1, master nid001002:10427, from Slurm step 7.0; no GPU; "
        "CPUs 8-9 (bound), NUMA node 1, OMP_NUM_THREADS 2; Python of the module; "
        "caches in /tmp/pytorch-1000/7-nid001003; exported before: nothing"
    )
    message = line(plan({**step, "MASTER_PORT": "4000", "OMP_NUM_THREADS": "1"}, caches=None))
    assert message.endswith("; caches in their default places; exported before: MASTER_PORT, OMP_NUM_THREADS")


def test_a_device_is_named_with_its_pci_address_where_that_is_known():
    gpu = SimpleNamespace(pci="0000:c1:00.0")
    devices = {"vendor": "nvidia", "count": 2, "index": 1}
    assert device(SimpleNamespace(**devices, gpu=gpu)) == "device 1 of 2 nvidia (0000:c1:00.0)"
    assert device(SimpleNamespace(**devices, gpu=None)) == "device 1 of 2 nvidia (PCI address unknown)"
