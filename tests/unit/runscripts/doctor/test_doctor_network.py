"""The doctor's check of the fast network, on nodes that are directories."""

import pytest
from programs import program
from pytorch_doctor import FAIL, NOT_APPLICABLE, OK, WARN
from pytorch_doctor.checks.network import check_network

IN_A_JOB = {"SLURM_JOB_ID": "7"}
LOGIN = "login"  # a directory with the commands of Slurm
CXI = {"/sys/class/cxi/cxi0/x": "", "/sys/class/cxi/cxi1/x": ""}
IB = {"PYTORCH_FAST_NETWORK": "IB", **IN_A_JOB}
ON_CXI = {"PYTORCH_FAST_NETWORK": "cxi", **IN_A_JOB}
ACTIVE, DOWN, INIT = "4: ACTIVE", "1: DOWN", "2: INIT"
AVOIDED = "prevents NCCL from using"


def infiniband(*states):
    return {f"/sys/class/infiniband/mlx5_{card}/ports/1/state": f"{state}\n" for card, state in enumerate(states)}


@pytest.mark.parametrize(
    ("files", "kind", "plugin", "env", "verdict", "finding", "remedy"),
    [
        ({}, "cuda", None, {}, NOT_APPLICABLE, "", ""),
        ({}, None, None, ON_CXI, NOT_APPLICABLE, "no module for GPUs is loaded", ""),
        # Slingshot needs the plugin, too
        (CXI, "rocm", "librccl-net.so", ON_CXI, OK, "cxi: cxi0, cxi1", ""),
        (CXI, "rocm", None, ON_CXI, FAIL, "plugin for libfabric does not", "aws-ofi-rccl"),
        (CXI, "rocm", None, {**ON_CXI, "NCCL_NET_PLUGIN": "none"}, WARN, AVOIDED, "unset NCCL_NET_PLUGIN"),
        # no card is a failure in a job alone
        ({}, "cuda", None, IB, FAIL, "", ""),
        ({}, "cuda", None, {"PYTORCH_FAST_NETWORK": "ib", "PATH": LOGIN}, NOT_APPLICABLE, "", ""),
        (infiniband(ACTIVE, ACTIVE), "cuda", None, IB, OK, "ib: mlx5_0, mlx5_1", ""),
        (infiniband(ACTIVE, DOWN), "cuda", None, IB, WARN, "no active port: mlx5_1 of mlx5_0, mlx5_1", ""),
        (infiniband(INIT, DOWN), "cuda", None, IB, FAIL, "no active port: mlx5_0, mlx5_1 of", ""),
        # turned off
        ({}, "cuda", None, {**IB, "NCCL_NET": "Socket"}, WARN, AVOIDED, "unset NCCL_NET"),
        ({}, "cuda", None, {**IB, "NCCL_IB_DISABLE": "1"}, WARN, AVOIDED, "unset NCCL_IB_DISABLE"),
    ],
)
def test_cards_that_ranks_would_use_exist_and_are_up(
    at, with_files, tmp_path, files, kind, plugin, env, verdict, finding, remedy
):
    program(tmp_path / LOGIN / "sbatch", "")
    env = {**env, "PATH": f"{tmp_path}/{env.get('PATH', 'absent')}"}
    found = check_network(at(with_files(files), kind, {"hip": "7.0", "plugin": plugin}, **env))
    assert (found.verdict, finding in found.finding, remedy in found.remedy) == (verdict, True, True), found
