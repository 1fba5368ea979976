"""The all-reduce check on two nodes of the testbed, and the job script that runs it with the doctor."""

import re
from pathlib import Path

import pytest

from testbed.stand_ins.job_scripts import submission, written

pytestmark = pytest.mark.testbed

# Runs the check while rank 2 adds wrong numbers.
WORSE = """
import os, sys
import torch.distributed as dist
sys.path.insert(0, os.environ["PAYLOAD"])
import allreduce_check as check

def wrong(message, real=dist.all_reduce, **options):
    message.view(-1)[-1:].add_(1)
    real(message, **options)

if os.environ["RANK"] == "2":
    dist.all_reduce = wrong
check.main(check.parse_options())
"""


def test_ranks_with_wrong_sums_are_named_with_their_nodes(testbed, venv, work):
    (work / "worse.py").write_text(WORSE)
    result = testbed.run_unchecked(
        f"module load {venv}\nsrun -N3 --ntasks-per-node=1 conda-python-distributed -u worse.py --max-size 64",
        cwd=work,
    )
    assert result.returncode != 0
    lines = {line.split(":")[0]: line for line in result.stdout.splitlines()}
    ranks = ", ".join(rf"{rank} \(nid\d+\)" for rank in range(3))
    assert re.match(rf"FAIL sums: wrong from 4 B on ranks {ranks}\. Repeat ", lines["FAIL sums"]), result.stdout
    assert result.stdout.splitlines()[-1] == "all-reduce check: FAIL: sums"


@pytest.mark.thorough  # test_doctor_on_nodes.py and the other test here always run the two parts
def test_the_job_asks_the_doctor_on_each_node_and_all_ranks(testbed, venv, dataset, work):
    job = submission("$PAYLOAD/jobs/slurm/check.job --max-size 1K")
    result = testbed.run_unchecked(f"module load {venv}\n{job}", cwd=work)
    ((name, text),) = written(work).items()
    assert result.returncode == 0, text
    assert re.fullmatch(r"check-\d+\.out", name)
    assert len(re.findall(r"^nid\d+: \d+ ok, \d+ n\.a\.$", text, re.MULTILINE)) == 2, text
    lines = Path(work, name).read_text().splitlines()
    assert any(line.startswith("sums: right in all ") for line in lines)
    assert lines[-1] == "all-reduce check: ok"
