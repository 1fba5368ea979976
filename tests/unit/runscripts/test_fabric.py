"""Names and interfaces of the fast network, as a cluster profile describes them, on nodes that have them or not.

Where ranks meet by them: tests/integration/test_fabric_on_nodes.py.
"""

import pytest
from pytorch_launch import LaunchError, fabric
from pytorch_launch.elastic import make_agent_plan, read_options
from pytorch_launch.fabric import fabric_name
from pytorch_launch.plan import make_plan
from pytorch_launch.topology import read_node
from tables import name, table
from variables import changed, variables

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
    for interface_name, state in states.items():
        interface = directory / "sys" / "class" / "net" / interface_name
        interface.mkdir(parents=True)
        (interface / "operstate").write_text(state + "\n")
    return str(directory)


def plan(env, root="/nowhere"):
    node = read_node(root, allowed={0})._replace(host=env.get("SLURMD_NODENAME", "vm"), launcher=8)
    return make_plan({"PYTORCH_FABRIC_NAME": "*i", **env}, node)


def rank(step, number):
    """The variables of one rank of the step of 2 nodes with 2 tasks each."""
    node = number // 2
    own = f"SLURM_PROCID={number} SLURM_LOCALID={number % 2} SLURM_NODEID={node} SLURMD_NODENAME=nid00100{node + 2}"
    return changed(step, own)


def warnings(plan):
    return [str(warning) for warning in plan.warnings if "FABRIC" in str(warning) or "IFNAME" in str(warning)]


NAMES = """
pattern        | host           | name
*i             | jwb0001        | jwb0001i
*i             | jwb0001.juwels | jwb0001i
*.hsn.example  | x4112          | x4112.hsn.example
*.hsn.example  | x4112.hsn.example | x4112.hsn.example
ib-*.cluster   | n17            | ib-n17.cluster
*i             | 10.0.0.7       | 10.0.0.7
*i             | fd00::7        | fd00::7
*              | n17            | n17
"""


@pytest.mark.parametrize("row", table(NAMES), ids=name)
def test_a_pattern_makes_the_name_on_the_fast_network_and_leaves_addresses(row):
    assert fabric_name(row["pattern"], row["host"]) == row["name"]


def test_a_name_of_another_nodes_address_stops_rank_0_before_the_others_wait_for_it(step, names):
    names["nid001002i"] = "10.9.9.9"
    with pytest.raises(LaunchError, match=r"is 10\.9\.9\.9, which is not an address of that node\. " + USE_PLAIN):
        plan(rank(step, 0))


def test_the_users_address_takes_precedence_and_no_name_is_looked_up(step, monkeypatch):
    monkeypatch.setattr(fabric, "look_up", None)
    assert "MASTER_ADDR" not in plan(changed(rank(step, 0), MASTER_ADDR="head")).changes
    assert plan(changed(rank(step, 0), PYTORCH_FABRIC_NAME="")).changes["MASTER_ADDR"] == "nid001002"


def test_a_world_on_one_node_uses_its_plain_name(step, monkeypatch):
    monkeypatch.setattr(fabric, "look_up", None)
    step.update(SLURM_STEP_TASKS_PER_NODE="4", SLURM_STEP_NODELIST="nid001002", SLURM_NODEID="0")
    step.update(SLURMD_NODENAME="nid001002")
    made = plan({**step, "PYTORCH_SOCKET_IFNAME": "hsn0"})
    assert made.changes["MASTER_ADDR"] == "nid001002"
    assert "GLOO_SOCKET_IFNAME" not in made.changes


def agent(step, node, **changes):
    """The plan and the options of torchrun's agent on a node of two."""
    step = changed(rank(step, 2 * node), f"SLURM_PROCID={node} SLURM_LOCALID=0", **changes)
    two = variables("SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2)")
    env = {"PYTORCH_FABRIC_NAME": "*i", **step, **two}
    return make_agent_plan(env, plan(env), read_options([], env))


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


#: The profile's list, variables of the user or the profile, and what is set.
INTERFACES = """
list            | variables               | set
hsn0 hsn1 hsn2  |                         | GLOO_SOCKET_IFNAME=hsn1 NCCL_SOCKET_IFNAME==hsn1
# the loopback's state is not known
ib0 lo          |                         | GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME==lo
hsn1            | NCCL_SOCKET_IFNAME=hsn  | GLOO_SOCKET_IFNAME=hsn1
hsn1            | GLOO_SOCKET_IFNAME=eth0 | NCCL_SOCKET_IFNAME==hsn1
hsn1            | GLOO_SOCKET_IFNAME=     | NCCL_SOCKET_IFNAME==hsn1
"""


@pytest.mark.parametrize("row", table(INTERFACES), ids=name)
def test_the_first_interface_that_is_up_becomes_that_of_gloo_and_nccl(step, names, with_address, tmp_path, row):
    root = node(tmp_path, hsn0="down", hsn1="up", hsn2="up", lo="unknown", ib0="lowerlayerdown")
    env = changed(rank(step, 0), row["variables"], PYTORCH_SOCKET_IFNAME=row["list"])
    made = plan(env, root)
    assert {name: value for name, value in made.changes.items() if "IFNAME" in name} == variables(row["set"])
    assert warnings(made) == []


def test_a_node_without_a_usable_interface_sets_none_and_names_what_each_lacks(step, names, with_address, tmp_path):
    with_address.remove("hsn1")
    root = node(tmp_path, hsn0="down", hsn1="up")
    plans = [plan(changed(rank(step, number), PYTORCH_SOCKET_IFNAME="hsn0 hsn1 hsn2"), root) for number in (0, 1)]
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
