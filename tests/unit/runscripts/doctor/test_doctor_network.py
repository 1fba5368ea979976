"""The doctor's checks of interfaces and the fast network, on nodes that are directories."""

import pytest
from programs import program
from pytorch_doctor import FAIL, NOT_APPLICABLE, OK, WARN
from pytorch_doctor.checks import network
from pytorch_doctor.checks.network import find_chosen

IN_A_JOB = {"SLURM_JOB_ID": "7"}
NCCL, GLOO = "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"
HERE = "matches no interface: here are eth0 hsn0 hsn1 lo"


@pytest.mark.parametrize(
    ("variable", "value", "chosen"),
    [
        *((NCCL, "hsn", ["hsn0", "hsn1"]), (NCCL, "eth,hsn0", ["eth0", "hsn0"]), (NCCL, "=hsn", [])),
        *((NCCL, "=hsn1,lo", ["hsn1", "lo"]), (NCCL, "^hsn", ["eth0", "lo"]), (NCCL, "^=hsn0,lo", ["eth0", "hsn1"])),
        *((NCCL, "ib", []), (GLOO, "eth0,lo", ["eth0", "lo"]), (GLOO, "eth", []), (GLOO, "eth0,ib0", [])),
    ],
)
def test_interfaces_are_chosen_as_nccl_and_gloo_choose_them(variable, value, chosen):
    assert find_chosen(variable, value, ["eth0", "hsn0", "hsn1", "lo"]) == chosen


@pytest.fixture
def login(tmp_path):
    """The variables of a login node of Slurm."""
    program(tmp_path / "sbatch", "")
    return {"PATH": str(tmp_path)}


@pytest.fixture
def hsn(with_files):
    """A node with two interfaces of the fabric, one of which is down."""
    states = {"eth0": "up", "hsn0": "up", "hsn1": "down", "lo": "unknown"}
    return with_files({f"/sys/class/net/{name}/operstate": state for name, state in states.items()})


@pytest.mark.parametrize(
    ("env", "verdict", "finding", "remedy"),
    [
        ({NCCL: "hsn0", GLOO: "eth0"}, OK, f"{GLOO}=eth0, {NCCL}=hsn0", ""),
        ({}, NOT_APPLICABLE, "none is set; torch uses the first one that is up", ""),
        *(({name: "ib0", **IN_A_JOB}, FAIL, f"{name}=ib0 {HERE}", f"export {name}=") for name in (NCCL, GLOO)),
        ({NCCL: "hsn"}, WARN, "NCCL_SOCKET_IFNAME=hsn: hsn1 is down", ""),
        # of the interfaces that a list leaves over, one may be down
        ({NCCL: "^lo,docker"}, OK, f"{NCCL}=^lo,docker", ""),
        ({NCCL: "^lo,eth,hsn0"}, WARN, "NCCL_SOCKET_IFNAME=^lo,eth,hsn0: hsn1 is down", ""),
    ],
)
def test_interfaces_that_are_named_exist_and_are_up(at, hsn, env, verdict, finding, remedy):
    found = network.check_interfaces(at(hsn, None, **env))
    assert (found.verdict, found.finding) == (verdict, finding) and remedy in found.remedy


def test_on_a_login_node_the_interfaces_of_the_profile_are_for_compute_nodes(at, hsn, login):
    found = network.check_interfaces(at(hsn, None, PYTORCH_SOCKET_IFNAME="ib0", **login))
    assert (found.verdict, found.finding) == (NOT_APPLICABLE, "PYTORCH_SOCKET_IFNAME=ib0 is for compute nodes")


# The fast network


def test_without_a_name_or_a_gpu_there_is_no_fast_network_to_check(at, laptop):
    assert network.check_network(at(laptop, "cuda")).verdict == NOT_APPLICABLE
    found = network.check_network(at(laptop, None, PYTORCH_FAST_NETWORK="cxi", **IN_A_JOB))
    assert (found.verdict, found.finding) == (NOT_APPLICABLE, "only NCCL uses cxi, and the module is for CPUs")


@pytest.mark.parametrize(
    ("plugin", "env", "verdict", "finding", "remedy"),
    [
        ("librccl-net.so", {}, OK, "cxi: cxi0, cxi1", ""),
        (None, {}, FAIL, "plugin for libfabric does not", "aws-ofi-rccl"),
        (None, {"NCCL_NET_PLUGIN": "x"}, FAIL, "no NCCL_NET_PLUGIN=x", ""),
        (None, {"NCCL_NET_PLUGIN": "none"}, FAIL, "prevents NCCL from using cxi", "unset NCCL_NET_PLUGIN"),
    ],
)
def test_slingshots_cards_need_the_plugin_too(at, with_files, plugin, env, verdict, finding, remedy):
    node = with_files({"/sys/class/cxi/cxi0/x": "", "/sys/class/cxi/cxi1/x": ""})
    here = at(node, "rocm", {"hip": "7.0", "plugin": plugin}, PYTORCH_FAST_NETWORK="cxi", **IN_A_JOB, **env)
    found = network.check_network(here)
    assert found.verdict == verdict and finding in found.finding and remedy in found.remedy


def test_no_card_is_a_failure_in_a_job_alone(at, laptop, login):
    assert network.check_network(at(laptop, "cuda", PYTORCH_FAST_NETWORK="IB", **IN_A_JOB)).verdict == FAIL
    assert network.check_network(at(laptop, "cuda", PYTORCH_FAST_NETWORK="IB", **login)).verdict == NOT_APPLICABLE


@pytest.mark.parametrize(
    ("states", "verdict", "message"),
    [
        (("4: ACTIVE", "4: ACTIVE"), OK, "IB: mlx5_0, mlx5_1"),
        (("4: ACTIVE", "1: DOWN"), WARN, "1 of 2 cards have no active port: mlx5_1"),
        (("2: INIT", "1: DOWN"), FAIL, "no port of mlx5_0, mlx5_1 is active"),
    ],
)
def test_infinibands_ports_must_be_active(at, with_files, states, verdict, message):
    ports = {f"/sys/class/infiniband/mlx5_{card}/ports/1/state": f"{state}\n" for card, state in enumerate(states)}
    found = network.check_network(at(with_files(ports), "cuda", PYTORCH_FAST_NETWORK="IB", **IN_A_JOB))
    assert (found.verdict, found.finding) == (verdict, message)


@pytest.mark.parametrize("setting", [("NCCL_NET", "Socket"), ("NCCL_IB_DISABLE", "1")])
def test_a_variable_that_turns_the_fast_network_off_is_a_failure(at, laptop, setting):
    found = network.check_network(at(laptop, "cuda", PYTORCH_FAST_NETWORK="IB", **dict([setting])))
    assert (found.verdict, found.remedy) == (FAIL, f"unset {setting[0]}")
