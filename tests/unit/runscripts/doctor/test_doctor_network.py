"""The doctor's check of the fast network, on nodes that are directories."""

import pytest
from programs import program
from pytorch_doctor.checks.network import check_network
from tables import name, table
from variables import variables

LOGIN = "login"  # a directory with the commands of Slurm
CXI = "/sys/class/cxi/cxi0/x", "/sys/class/cxi/cxi1/x"
#: Cards with the states of their ports, where InfiniBand has them; variables of a job with the profile's network.
CARDS = """
network | cards              | module | plugin | variables              | verdict | finding                            | remedy
        |                    | cuda   |        |                        | n.a.    |                                    |
cxi     |                    |        |        | SLURM_JOB_ID=7         | n.a.    | no module for GPUs is loaded       |
# Slingshot needs the plugin, too
cxi     | two                | rocm   | yes    | SLURM_JOB_ID=7         | ok      | cxi: cxi0, cxi1                    |
cxi     | two                | rocm   |        | SLURM_JOB_ID=7         | FAIL    | plugin for libfabric does not      | aws-ofi-rccl
cxi     | two                | rocm   |        | NCCL_NET_PLUGIN=none   | warn    | prevents NCCL from using           | unset NCCL_NET_PLUGIN
# no card is a failure in a job alone
IB      |                    | cuda   |        | SLURM_JOB_ID=7         | FAIL    |                                    |
ib      |                    | cuda   |        | PATH=login             | n.a.    |                                    |
IB      | 4: ACTIVE,4: ACTIVE | cuda  |        | SLURM_JOB_ID=7         | ok      | ib: mlx5_0, mlx5_1                 |
IB      | 4: ACTIVE,1: DOWN  | cuda   |        | SLURM_JOB_ID=7         | warn    | no active port: mlx5_1 of mlx5_0, mlx5_1 |
IB      | 2: INIT,1: DOWN    | cuda   |        | SLURM_JOB_ID=7         | FAIL    | no active port: mlx5_0, mlx5_1 of  |
# turned off
IB      |                    | cuda   |        | NCCL_NET=Socket        | warn    | prevents NCCL from using           | unset NCCL_NET
IB      |                    | cuda   |        | NCCL_IB_DISABLE=1      | warn    | prevents NCCL from using           | unset NCCL_IB_DISABLE
"""  # noqa: E501


def files_of(cards):
    if cards == "two":
        return dict.fromkeys(CXI, "")
    states = enumerate(filter(None, cards.split(",")))
    return {f"/sys/class/infiniband/mlx5_{card}/ports/1/state": f"{state}\n" for card, state in states}


@pytest.mark.parametrize("row", table(CARDS), ids=name)
def test_cards_that_ranks_would_use_exist_and_are_up(at, with_files, tmp_path, row):
    program(tmp_path / LOGIN / "sbatch", "")
    env = variables(f"PYTORCH_FAST_NETWORK={row['network']} {row['variables']}")
    env["PATH"] = f"{tmp_path}/{env.get('PATH', 'absent')}"
    facts = {"hip": "7.0", "plugin": row["plugin"]}
    found = check_network(at(with_files(files_of(row["cards"])), row["module"] or None, facts, **env))
    assert found.verdict == row["verdict"]
    assert row["finding"] in found.finding and row["remedy"] in found.remedy
