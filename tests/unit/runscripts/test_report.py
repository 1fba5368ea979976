"""The line about one rank."""

import pytest
from pytorch_launch.launchers import discover
from pytorch_launch.plan import Plan
from pytorch_launch.report import device, interface, line


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


def plan(env, root="", **fields):
    """A Plan with what the report needs of it."""
    fields = {
        "caches": "/tmp/pytorch-1000/7-nid001003",  # noqa: S108
        "changes": {"MASTER_ADDR": "nid001002", "MASTER_PORT": "10427", "OMP_NUM_THREADS": "2"},
        **fields,
    }
    missing = dict.fromkeys(Plan.__slots__)
    decisions = {"world": discover(env, "vm"), "devices": NoDevices, "placement": Placement, "bind": Placement.bind}
    return Plan(**{**missing, **decisions, "env": env, "root": root, **fields})


@pytest.fixture
def proc(tmp_path):
    """A root whose default route is over hsn0."""
    (tmp_path / "proc" / "net").mkdir(parents=True)
    (tmp_path / "proc" / "net" / "route").write_text(
        "Iface\tDestination\tGateway\tFlags\nhsn1\t0000FE0A\t00000000\t0001\nhsn0\t00000000\t0100FE0A\t0003\n"
    )
    return str(tmp_path)


def test_the_line_reports_what_was_decided_and_why(step, proc):
    message = line(plan(step, root=proc))
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
        "interface hsn0",
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


def test_the_interface_is_the_one_that_torch_is_told(proc, tmp_path):
    assert interface({"NCCL_SOCKET_IFNAME": "hsn0,hsn1", "GLOO_SOCKET_IFNAME": "eth0"}, proc) == "hsn0,hsn1"
    assert interface({"GLOO_SOCKET_IFNAME": "eth0"}, proc) == "eth0"
    assert interface({}, proc) == "hsn0"
    assert interface({}, str(tmp_path / "nowhere")) == "unknown"
