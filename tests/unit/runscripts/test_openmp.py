"""Variables by which OpenMP binds the threads of ranks."""

import pytest
from placements import world
from pytorch_launch.openmp import choose_openmp
from tables import name, table
from variables import variables

#: Of one of some ranks on a node with its CPUs: the variables that are unset, and how the warnings begin.
CASES = """
variables                       | ranks | CPUs | unset             | warning
OMP_PROC_BIND=close OMP_PLACES=cores | 2 | 4    |                   | OMP_PROC_BIND=close OMP_PLACES=cores binds
OMP_PROC_BIND=close             | 2     | 1    |                   |
OMP_PROC_BIND=false GOMP_CPU_AFFINITY=0 | 2 | 4 |                   |
OMP_PROC_BIND=FALSE             | 2     | 4    |                   |
KMP_AFFINITY=disabled           | 2     | 4    |                   |
KMP_AFFINITY=compact            | 2     | 4    |                   | KMP_AFFINITY=compact binds each rank
# numbers of CPUs are the same for all ranks of a node
GOMP_CPU_AFFINITY=0-1           | 2     | 1    | GOMP_CPU_AFFINITY | GOMP_CPU_AFFINITY=0-1 names CPUs
GOMP_CPU_AFFINITY=0-1           | 2     | 4    | GOMP_CPU_AFFINITY | GOMP_CPU_AFFINITY=0-1 names CPUs
OMP_PLACES={0},{1}              | 2     | 1    | OMP_PLACES        | OMP_PLACES={0},{1} names CPUs
KMP_AFFINITY=explicit,proclist=[0,1] | 2 | 1   | KMP_AFFINITY      | KMP_AFFINITY=explicit,proclist=[0,1] names CPUs
PYTORCH_LAUNCH_AGENT_GOMP_CPU_AFFINITY=0-1 | 2 | 1 | GOMP_CPU_AFFINITY | GOMP_CPU_AFFINITY=0-1 names CPUs
GOMP_CPU_AFFINITY=0-1           | 1     | 4    |                   | GOMP_CPU_AFFINITY=0-1 binds each rank
GOMP_CPU_AFFINITY=0-1           | 1     | 1    | GOMP_CPU_AFFINITY | GOMP_CPU_AFFINITY=0-1 names CPUs
"""


@pytest.mark.parametrize("row", table(CASES), ids=name)
def test_what_binds_all_ranks_to_the_same_cores_is_unset_and_what_binds_one_is_worth_a_warning(row):
    cpus = set(range(int(row["CPUs"])))
    changes, warnings = choose_openmp(variables(row["variables"]), world(0, int(row["ranks"])), cpus)
    assert changes == dict.fromkeys(row["unset"].split())
    texts = [str(problem) for problem in warnings]
    assert len(texts) == bool(row["warning"])
    assert not texts or texts[0].startswith(row["warning"])
