"""training/__init__.py: while a command imports torch, Python does not look for garbage all the time."""

COUNT = """
import gc, training
before = sum(generation["collections"] for generation in gc.get_stats())
kept = [[] for _ in range(90_000)]
print(sum(generation["collections"] for generation in gc.get_stats()) - before)
"""


def test_many_objects_that_stay_are_not_searched_for_garbage(run_alone, payload):
    assert run_alone(COUNT, script="-c", PYTHONPATH=str(payload)).stdout == "0\n"
