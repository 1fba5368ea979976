"""Names and interfaces of the fast network, as a cluster profile describes them, on nodes that have them or not.

Where ranks meet by them, and what the doctor reports there: tests/integration/test_fabric_on_nodes.py.
"""

import pytest
from pytorch_doctor import FAIL, NOT_APPLICABLE, OK, WARN
from pytorch_doctor.checks import network
from pytorch_doctor.context import Context
from pytorch_launch import LaunchError, fabric
from pytorch_launch.elastic import make_agent_plan
from pytorch_launch.fabric import fabric_name
from pytorch_launch.plan import make_plan
from pytorch_launch.topology import Node
from variables import variables

USE_PLAIN = "Correct PYTORCH_FABRIC_NAME, or export it empty to use the plain names"


@pytest.fixture
def names(monkeypatch):
    """What the resolver of this node knows: name -> address. Addresses that begin with 127. are its own."""
    known = {"nid001002": "127.0.0.1", "nid001002i": "127.0.0.2", "nid001003": "10.0.0.3", "nid001003i": "10.1.0.3"}
    monkeypatch.setattr(fabric, "look_up", lambda _, name: [known[name]] if name in known else [])
    return known


@pytest.fixture
def with_address(monkeypatch):
    """The interfaces of this node that have an address."""
    interfaces = {"hsn0", "hsn1", "lo"}
    monkeypatch.setattr(fabric, "has_address", interfaces.__contains__)
    return interfaces


def node(directory, **states):
    """Make the interfaces of a node, name -> operstate; returns its root."""
    for name, state in states.items():
        interface = directory / "sys" / "class" / "net" / name
        interface.mkdir(parents=True)
        (interface / "operstate").write_text(state + "\n")
    return str(directory)


def plan(env, root="/nowhere"):
    node = Node(root, host=env.get("SLURMD_NODENAME", "vm"), launcher=8, allowed={0})
    return make_plan({"PYTORCH_FABRIC_NAME": "*i", **env}, node)


def rank(step, number):
    """The variables of one rank of the step of 2 nodes with 2 tasks each."""
    node = number // 2
    own = f"SLURM_PROCID={number} SLURM_LOCALID={number % 2} SLURM_NODEID={node} SLURMD_NODENAME=nid00100{node + 2}"
    return {**step, **variables(own)}


def warnings(plan):
    return [str(warning) for warning in plan.warnings if "FABRIC" in str(warning) or "IFNAME" in str(warning)]


@pytest.mark.parametrize(
    ("pattern", "host", "name"),
    [
        ("*i", "jwb0001", "jwb0001i"),
        ("*i", "jwb0001.juwels", "jwb0001i"),
        ("*.hsn.cm.aurora.alcf.anl.gov", "x4112c3s2b0n0.hsn.cm.aurora.alcf.anl.gov", None),
        ("*.hsn.cm.aurora.alcf.anl.gov", "x4112c3s2b0n0", "x4112c3s2b0n0.hsn.cm.aurora.alcf.anl.gov"),
        ("ib-*.cluster", "n17", "ib-n17.cluster"),
        ("*i", "10.0.0.7", None),
        ("*i", "fd00::7", None),
        ("*", "n17", None),
    ],
)
def test_a_pattern_makes_the_name_on_the_fast_network_and_leaves_addresses(pattern, host, name):
    assert fabric_name(pattern, host) == (name or host)


def test_a_name_of_another_nodes_address_stops_rank_0_before_the_others_wait_for_it(step, names):
    names["nid001002i"] = "10.9.9.9"
    with pytest.raises(LaunchError, match=r"is 10\.9\.9\.9, which is not an address of that node\. " + USE_PLAIN):
        plan(rank(step, 0))


def test_the_users_address_takes_precedence_and_no_name_is_looked_up(step, monkeypatch):
    monkeypatch.setattr(fabric, "look_up", None)
    assert "MASTER_ADDR" not in plan({**rank(step, 0), "MASTER_ADDR": "head"}).changes
    assert plan({**rank(step, 0), "PYTORCH_FABRIC_NAME": ""}).changes["MASTER_ADDR"] == "nid001002"


def test_a_world_on_one_node_uses_its_plain_name(step, monkeypatch):
    monkeypatch.setattr(fabric, "look_up", None)
    step.update(SLURM_STEP_TASKS_PER_NODE="4", SLURM_STEP_NODELIST="nid001002", SLURM_NODEID="0")
    step.update(SLURMD_NODENAME="nid001002")
    made = plan({**step, "PYTORCH_SOCKET_IFNAME": "hsn0"})
    assert made.changes["MASTER_ADDR"] == "nid001002"
    assert "GLOO_SOCKET_IFNAME" not in made.changes


def agent(step, node, **changes):
    """The plan and the options of torchrun's agent on a node of two."""
    step = {**rank(step, 2 * node), "SLURM_PROCID": str(node), "SLURM_LOCALID": "0", **changes}
    two = variables("SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2)")
    return make_agent_plan(plan({**step, **two}))


def test_torchrun_gets_the_plain_name_of_a_node_without_another_and_one_sentence(step, names):
    del names["nid001003i"]
    for pattern, unknown in (("*i", "nid001003i"), ("*-ib", "nid001002-ib")):
        made, options = agent(step, 1, PYTORCH_FABRIC_NAME=pattern)
        assert "--local-addr=nid001003" in options
        assert [text.partition(", ")[0] for text in warnings(made)] == [unknown]
    # with the address of another node it stops
    names["nid001003i"] = "10.9.9.9"
    with pytest.raises(LaunchError, match="nid001003i, .* which is not an address of that node"):
        agent(step, 1)


@pytest.mark.parametrize(
    ("interfaces", "env", "chosen"),
    [
        ("hsn0 hsn1 hsn2", {}, ("hsn1", "=hsn1")),
        ("ib0 lo", {}, ("lo", "=lo")),  # the loopback's state is not known
        # what the user or the profile sets
        ("hsn1", {"NCCL_SOCKET_IFNAME": "hsn"}, ("hsn1", None)),
        *(("hsn1", {"GLOO_SOCKET_IFNAME": value}, (None, "=hsn1")) for value in ("eth0", "")),
    ],
)
def test_the_first_interface_that_is_up_becomes_that_of_gloo_and_nccl(
    step, names, with_address, tmp_path, interfaces, env, chosen
):
    root = node(tmp_path, hsn0="down", hsn1="up", hsn2="up", lo="unknown", ib0="lowerlayerdown")
    made = plan({**rank(step, 0), "PYTORCH_SOCKET_IFNAME": interfaces, **env}, root)
    assert tuple(made.changes.get(f"{name}_SOCKET_IFNAME") for name in ("GLOO", "NCCL")) == chosen
    assert warnings(made) == []


def test_a_node_without_a_usable_interface_sets_none_and_names_what_each_lacks(step, names, with_address, tmp_path):
    with_address.remove("hsn1")
    root = node(tmp_path, hsn0="down", hsn1="up")
    plans = [plan({**rank(step, number), "PYTORCH_SOCKET_IFNAME": "hsn0 hsn1 hsn2"}, root) for number in (0, 1)]
    assert not [made for made in plans if {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"} & set(made.changes)]
    assert warnings(plans[1]) == []
    (warning,) = warnings(plans[0])
    assert "on nid001002 (hsn0 is down, hsn1 has no address, hsn2 is absent): GLOO_SOCKET_IFNAME and NCCL_S" in warning


def test_names_of_this_machine_have_addresses_and_others_have_none():
    (address, *_) = fabric.look_up({}, "localhost")
    assert fabric.is_local(address)
    assert not fabric.is_local("192.0.2.1")  # of documents, RFC 5737
    assert [fabric.look_up({}, name) for name in ("no.such.name.invalid", "n" * 300)] == [[], []]
    assert [fabric.has_address(name) for name in ("lo", "hsn0")] == [True, False]


def test_the_look_up_has_the_time_limits_of_the_ranks(monkeypatch):
    """Without them, a name server that does not answer delays the launch by 10 s (resolv.conf(5))."""
    given = []
    monkeypatch.setattr(fabric.os, "putenv", lambda *variable: given.append(variable))
    env = {"PYTORCH_DISTRIBUTED_RES_OPTIONS": "timeout:1 attempts:1"}
    fabric.look_up(env, "localhost")
    fabric.look_up({**env, "RES_OPTIONS": "rotate"}, "localhost")
    assert given == [("RES_OPTIONS", "timeout:1 attempts:1")]


def found(check, step, root="/nowhere", **env):
    """The doctor's finding on the first node of the step."""
    return check(Context({"PYTORCH_FABRIC_NAME": "*i", **rank(step, 0), **env}, root=root))


def test_the_doctor_reports_a_name_of_another_node_and_that_no_interface_is_usable(step, names, with_address, tmp_path):
    assert found(network.check_fabric, step, PYTORCH_FABRIC_NAME="").verdict == NOT_APPLICABLE
    names["nid001002i"] = "10.9.9.9"
    finding = found(network.check_fabric, step)
    assert finding.verdict == FAIL and "10.9.9.9, which is not an address of that node" in finding.finding
    root = node(tmp_path, hsn0="down", hsn1="up")
    assert found(network.check_interfaces, step, root, PYTORCH_SOCKET_IFNAME="hsn0 hsn1").verdict == OK
    finding = found(network.check_interfaces, step, root, PYTORCH_SOCKET_IFNAME="hsn0 ib0")
    assert (finding.verdict, "(hsn0 is down, ib0 is absent)" in finding.finding) == (WARN, True)


def test_the_doctor_names_no_network_that_a_job_on_one_node_does_not_use(step):
    env = {"PYTORCH_FAST_NETWORK": "cxi", "NCCL_NET": "Socket", "SLURM_JOB_NUM_NODES": "1"}
    assert "no card for cxi" in found(network.check_network, step, **env).finding
    env["SLURM_JOB_NUM_NODES"] = "2"
    assert "NCCL_NET=Socket prevents NCCL" in found(network.check_network, step, **env).finding
