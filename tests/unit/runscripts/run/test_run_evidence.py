"""Which node failed by what srun reports; a program's own failure names none."""

import pytest
from pytorch_run import killed_nodes

KILLED, TERMINATED = "srun: error: n2: tasks 4-7: Killed", "srun: error: n1: tasks 0-3: Terminated"


@pytest.mark.parametrize(
    ("lines", "failed"),
    [
        ([KILLED, TERMINATED], ["n2"]),
        ([KILLED, "srun: error: n3: tasks 8-11: Killed", TERMINATED], ["n2"]),
        # of a step that Slurm ends, those that ignore SIGTERM are killed
        (["srun: error: n1: task 0: Exited with exit code 1", TERMINATED, KILLED], []),
        ([TERMINATED, KILLED], []),
        # one task of a node, a lack of memory, a signal to the whole step
        (["srun: error: n2: task 4: Killed", TERMINATED, "srun: error: n2: tasks 5-7: Terminated"], []),
        (["srun: error: n2: tasks 4-7: Out Of Memory", TERMINATED], []),
        (["srun: error: n[1-2]: tasks 0-7: Killed"], []),
        # Slurm then kills the tasks of the healthy nodes
        (["srun: error: Node failure on n2", "srun: error: n1: tasks 0-3: Killed"], ["n2"]),
        ([], []),
    ],
)
def test_sruns_messages_name_the_node_that_failed_first(lines, failed):
    assert list(killed_nodes(lines)) == failed
