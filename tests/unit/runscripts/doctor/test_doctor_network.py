"""The doctor's checks of interfaces and the fast network, on nodes that are directories."""

import pytest
from pytorch_doctor import FAIL, NOT_APPLICABLE, OK, WARN
from pytorch_doctor.checks import network
from pytorch_doctor.checks.network import chosen_by_gloo, chosen_by_nccl

IN_A_JOB = {"SLURM_JOB_ID": "7"}


# Interfaces


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        ("hsn", ["hsn0", "hsn1"]),
        ("eth,hsn0", ["eth0", "hsn0"]),
        ("=hsn", []),
        ("=hsn1,lo", ["hsn1", "lo"]),
        ("^hsn", ["eth0", "lo"]),
        ("^=hsn0,lo", ["eth0", "hsn1"]),
        ("ib", []),
    ],
)
def test_interfaces_are_chosen_as_nccl_chooses_them(value, chosen):
    assert chosen_by_nccl(value, ["eth0", "hsn0", "hsn1", "lo"]) == chosen


def test_gloo_wants_all_of_the_names_and_whole():
    assert chosen_by_gloo("eth0,lo", ["eth0", "lo"]) == ["eth0", "lo"]
    assert chosen_by_gloo("eth", ["eth0", "lo"]) == []


@pytest.fixture
def hsn(with_files):
    """A node with two interfaces of the fabric, one of which is down."""
    states = {"eth0": "up", "hsn0": "up", "hsn1": "down", "lo": "unknown"}
    return with_files({f"/sys/class/net/{name}/operstate": state for name, state in states.items()})


def test_interfaces_that_are_there_are_fine(at, hsn):
    assert network.check_interfaces(at(hsn, None, NCCL_SOCKET_IFNAME="hsn0", GLOO_SOCKET_IFNAME="eth0")).verdict == OK
    assert network.check_interfaces(at(hsn, None)).verdict == NOT_APPLICABLE


@pytest.mark.parametrize("variable", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
def test_an_interface_that_is_not_there_is_a_failure_that_lists_those_that_are(at, hsn, variable):
    found = network.check_interfaces(at(hsn, None, **{variable: "ib0"}, **IN_A_JOB))
    assert found.verdict == FAIL
    assert found.finding == f"{variable}=ib0 matches no interface: here are eth0 hsn0 hsn1 lo"
    assert f"export {variable}=" in found.remedy


def test_an_interface_that_is_down_is_a_warning(at, hsn):
    found = network.check_interfaces(at(hsn, None, NCCL_SOCKET_IFNAME="hsn"))
    assert (found.verdict, found.finding) == (WARN, "NCCL_SOCKET_IFNAME=hsn: hsn1 is down")


def test_of_the_interfaces_that_a_list_leaves_over_one_may_be_down(at, hsn):
    assert network.check_interfaces(at(hsn, None, NCCL_SOCKET_IFNAME="^lo,docker")).verdict == OK
    found = network.check_interfaces(at(hsn, None, NCCL_SOCKET_IFNAME="^lo,eth,hsn0"))
    assert (found.verdict, found.finding) == (WARN, "NCCL_SOCKET_IFNAME=^lo,eth,hsn0: hsn1 is down")


def test_on_a_login_node_the_interfaces_of_the_profile_are_for_compute_nodes(at, hsn, tmp_path):
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").chmod(0o755)
    found = network.check_interfaces(at(hsn, None, PYTORCH_SOCKET_IFNAME="ib0", PATH=str(tmp_path)))
    assert (found.verdict, found.finding) == (NOT_APPLICABLE, "PYTORCH_SOCKET_IFNAME=ib0 is for compute nodes")


# The fast network


def test_without_a_name_there_is_no_fast_network_to_check(at, laptop):
    assert network.check_network(at(laptop, "cuda")).verdict == NOT_APPLICABLE


def test_a_module_for_cpus_does_without_the_fast_network(at, laptop):
    found = network.check_network(at(laptop, None, PYTORCH_FAST_NETWORK="cxi", **IN_A_JOB))
    assert (found.verdict, found.finding) == (NOT_APPLICABLE, "only NCCL uses cxi, and the module is for CPUs")


def test_slingshots_cards_need_the_plugin_too(at, with_files):
    node = with_files({"/sys/class/cxi/cxi0/x": "", "/sys/class/cxi/cxi1/x": ""})
    env = {"PYTORCH_FAST_NETWORK": "cxi", **IN_A_JOB}
    found = network.check_network(at(node, "rocm", {"hip": "7.0", "plugin": "librccl-net.so"}, **env))
    assert (found.verdict, found.finding) == (OK, "cxi: cxi0, cxi1")
    found = network.check_network(at(node, "rocm", {"hip": "7.0"}, **env))
    assert found.verdict == FAIL
    assert "plugin for libfabric does not" in found.finding
    assert "aws-ofi-rccl" in found.remedy
    found = network.check_network(at(node, "rocm", {"hip": "7.0"}, NCCL_NET_PLUGIN="x", **env))
    assert (found.verdict, "no NCCL_NET_PLUGIN=x" in found.finding) == (FAIL, True)
    found = network.check_network(at(node, "rocm", {"hip": "7.0"}, NCCL_NET_PLUGIN="none", **env))
    assert (found.verdict, found.remedy) == (FAIL, "unset NCCL_NET_PLUGIN")


def test_no_card_is_a_failure_in_a_job_alone(at, laptop, tmp_path):
    assert network.check_network(at(laptop, "cuda", PYTORCH_FAST_NETWORK="IB", **IN_A_JOB)).verdict == FAIL
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").chmod(0o755)
    assert (
        network.check_network(at(laptop, "cuda", PYTORCH_FAST_NETWORK="IB", PATH=str(tmp_path))).verdict
        == NOT_APPLICABLE
    )


@pytest.mark.parametrize(
    ("states", "verdict", "message"),
    [
        (("4: ACTIVE", "4: ACTIVE"), OK, "IB: mlx5_0, mlx5_1"),
        (("4: ACTIVE", "1: DOWN"), WARN, "1 of 2 cards have no active port: mlx5_1"),
        (("2: INIT", "1: DOWN"), FAIL, "no port of mlx5_0, mlx5_1 is active"),
    ],
)
def test_infinibands_ports_must_be_active(at, with_files, states, verdict, message):
    node = with_files(
        {f"/sys/class/infiniband/mlx5_{card}/ports/1/state": f"{state}\n" for card, state in enumerate(states)}
    )
    found = network.check_network(at(node, "cuda", PYTORCH_FAST_NETWORK="IB", **IN_A_JOB))
    assert (found.verdict, found.finding) == (verdict, message)


@pytest.mark.parametrize("setting", [("NCCL_NET", "Socket"), ("NCCL_IB_DISABLE", "1")])
def test_a_variable_that_turns_the_fast_network_off_is_a_failure(at, laptop, setting):
    found = network.check_network(at(laptop, "cuda", PYTORCH_FAST_NETWORK="IB", **dict([setting])))
    assert found.verdict == FAIL
    assert found.remedy == f"unset {setting[0]}"
