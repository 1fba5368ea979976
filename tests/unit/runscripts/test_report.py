"""The line about one rank."""

from pytorch_launch.launchers import discover
from pytorch_launch.plan import Plan
from pytorch_launch.report import device, line


class Devices:
    """One of four GPUs of which the rank sees two."""

    vendor, count, index = "nvidia", 2, 1

    class gpu:
        pci = "0000:c1:00.0"


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
    message = line(plan(step))
    for fact in (
        "nid001003: ",
        "rank 3 of 4",
        "local rank 1 of 2",
        "node rank 1",
        "nid001002:10427",
        "Slurm step 7.0",
        "no GPU",
        "CPUs 8-9 (bound)",
        "NUMA node 1",
        "OMP_NUM_THREADS 2",
        "/tmp/pytorch-1000/7-nid001003",  # noqa: S108
        "exported before: nothing",
    ):
        assert fact in message
    assert "\n" not in message


def test_what_the_user_decided_is_said(step):
    message = line(plan({**step, "MASTER_PORT": "4000", "OMP_NUM_THREADS": "1"}, caches=None))
    assert message.endswith("exported before: MASTER_PORT, OMP_NUM_THREADS")
    assert "caches in their default places" in message


def test_a_device_is_named_with_its_pci_address_where_that_is_known():
    assert device(Devices) == "device 1 of 2 nvidia (0000:c1:00.0)"

    class Unknown(Devices):
        gpu = None

    assert device(Unknown) == "device 1 of 2 nvidia (PCI address unknown)"
