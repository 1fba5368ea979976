"""The doctor's checks of interfaces and the fast network, on nodes that are directories."""

import pytest
from programs import program
from pytorch_doctor import FAIL, NOT_APPLICABLE, OK, WARN
from pytorch_doctor.checks import network

IN_A_JOB = {"SLURM_JOB_ID": "7"}
NCCL, GLOO = "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"
HERE = "matches no interface: here are eth0 hsn0 hsn1 lo"
LOGIN = "login"  # a directory with the commands of Slurm


#: Files of a node with two interfaces of the fabric, one of which is down; with two cards of Slingshot; of InfiniBand.
HSN = {
    f"/sys/class/net/{name}/operstate": state
    for name, state in {"eth0": "up", "hsn0": "up", "hsn1": "down", "lo": "unknown"}.items()
}
CXI = {"/sys/class/cxi/cxi0/x": "", "/sys/class/cxi/cxi1/x": ""}


def infiniband(*states):
    return {f"/sys/class/infiniband/mlx5_{card}/ports/1/state": f"{state}\n" for card, state in enumerate(states)}


IB, ON_CXI = {"PYTORCH_FAST_NETWORK": "IB"}, {"PYTORCH_FAST_NETWORK": "cxi", **IN_A_JOB}
ACTIVE, DOWN, INIT = "4: ACTIVE", "1: DOWN", "2: INIT"
#: Files of the node, the module's GPUs, the plugin that torch finds, variables; then verdict, finding, remedy.
INTERFACES = [
    ({NCCL: "hsn0", GLOO: "eth0"}, OK, f"{GLOO}=eth0, {NCCL}=hsn0", ""),
    ({}, NOT_APPLICABLE, "none is set; torch uses the first one that is up", ""),
    *(({name: "ib0", **IN_A_JOB}, FAIL, f"{name}=ib0 {HERE}", f"export {name}=") for name in (NCCL, GLOO)),
    # NCCL compares beginnings, or names after "=", gloo names
    ({NCCL: "hsn"}, WARN, "NCCL_SOCKET_IFNAME=hsn: hsn1 is down", ""),
    *(({NCCL: names}, WARN, f"{names}: hsn1 is down", "") for names in ("eth,hsn1", "=hsn1,lo", "^=eth0,hsn0,lo")),
    ({NCCL: "^=eth,hsn0,lo"}, OK, f"{NCCL}=^=eth,hsn0,lo", ""),
    *((env | IN_A_JOB, FAIL, HERE, "") for env in ({NCCL: "=hsn"}, {GLOO: "eth"}, {GLOO: "eth0,ib0"})),
    # of the interfaces that a list leaves over, one may be down
    ({NCCL: "^lo,docker"}, OK, f"{NCCL}=^lo,docker", ""),
    ({NCCL: "^lo,eth,hsn0"}, WARN, "NCCL_SOCKET_IFNAME=^lo,eth,hsn0: hsn1 is down", ""),
    # on a login node those of the profile are for compute nodes
    ({"PYTORCH_SOCKET_IFNAME": "ib0", "PATH": LOGIN}, NOT_APPLICABLE, "=ib0 is for compute nodes", ""),
]
NETWORKS = [
    ({}, "cuda", None, {}, NOT_APPLICABLE, "", ""),
    ({}, None, None, ON_CXI, NOT_APPLICABLE, "only NCCL uses cxi, and the module is for CPUs", ""),
    # Slingshot needs the plugin, too
    (CXI, "rocm", "librccl-net.so", ON_CXI, OK, "cxi: cxi0, cxi1", ""),
    (CXI, "rocm", None, ON_CXI, FAIL, "plugin for libfabric does not", "aws-ofi-rccl"),
    (CXI, "rocm", None, {**ON_CXI, "NCCL_NET_PLUGIN": "x"}, FAIL, "no x", ""),
    (CXI, "rocm", None, {**ON_CXI, "NCCL_NET_PLUGIN": "none"}, FAIL, "prevents NCCL from using cxi", "unset NCCL"),
    # no card is a failure in a job alone
    ({}, "cuda", None, {**IB, **IN_A_JOB}, FAIL, "", ""),
    ({}, "cuda", None, {**IB, "PATH": LOGIN}, NOT_APPLICABLE, "", ""),
    (infiniband(ACTIVE, ACTIVE), "cuda", None, {**IB, **IN_A_JOB}, OK, "IB: mlx5_0, mlx5_1", ""),
    (infiniband(ACTIVE, DOWN), "cuda", None, {**IB, **IN_A_JOB}, WARN, "1 of 2 cards have no active port: mlx5_1", ""),
    (infiniband(INIT, DOWN), "cuda", None, {**IB, **IN_A_JOB}, FAIL, "no port of mlx5_0, mlx5_1 is active", ""),
    # turned off
    ({}, "cuda", None, {**IB, "NCCL_NET": "Socket"}, FAIL, "", "unset NCCL_NET"),
    ({}, "cuda", None, {**IB, "NCCL_IB_DISABLE": "1"}, FAIL, "", "unset NCCL_IB_DISABLE"),
]


@pytest.mark.parametrize(
    ("check", "files", "kind", "plugin", "env", "verdict", "finding", "remedy"),
    [
        *((network.check_interfaces, HSN, None, None, *row) for row in INTERFACES),
        *((network.check_network, *row) for row in NETWORKS),
    ],
)
def test_interfaces_and_cards_that_ranks_would_use_exist_and_are_up(
    at, with_files, tmp_path, check, files, kind, plugin, env, verdict, finding, remedy
):
    program(tmp_path / LOGIN / "sbatch", "")
    env = {**env, "PATH": f"{tmp_path}/{env.get('PATH', 'absent')}"}
    found = check(at(with_files(files), kind, {"hip": "7.0", "plugin": plugin}, **env))
    assert found.verdict == verdict and finding in found.finding and remedy in found.remedy
