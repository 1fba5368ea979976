"""The share of a node's CPUs that one rank gets."""

import pytest
from pytorch_launch.topology import threads_per_rank


@pytest.mark.parametrize(
    ("mask", "node", "local_size", "per_task", "threads"),
    [
        pytest.param(7, 64, 8, None, 7, id="a bound rank uses its mask"),
        pytest.param(7, 64, 8, 7, 7, id="a bound rank with -c uses its mask"),
        pytest.param(14, 64, 4, 7, 7, id="-c is never exceeded"),
        pytest.param(1, 64, 4, 7, 1, id="nor is the mask"),
        pytest.param(64, 64, 8, None, 8, id="unbound ranks share the node"),
        pytest.param(64, 64, 3, None, 21, id="rounded down"),
        pytest.param(64, 64, 2, 4, 4, id="unbound ranks with -c use what they asked for"),
        pytest.param(64, 16, 4, None, 4, id="a mask wider than the step shares the step"),
        pytest.param(64, 64, 1, None, 64, id="a rank alone has the node"),
        pytest.param(2, 2, 8, None, 1, id="a crowded node still gives one thread"),
    ],
)
def test_threads_stay_on_the_cpus_of_their_rank(mask, node, local_size, per_task, threads):
    assert threads_per_rank(mask, node, local_size, per_task) == threads
