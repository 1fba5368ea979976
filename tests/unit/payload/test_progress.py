"""How far an epoch is: a line now and then."""

import pytest
from training import progress
from training.progress import Progress


class Clock:
    """A clock that stands still until it is set forward."""

    seconds = 100.0

    def perf_counter(self):
        return self.seconds


@pytest.mark.parametrize(
    ("enabled", "printed"),
    [(True, "epoch 1/3  40 %  loss 0.2500 (rank 0)\nepoch 1/3  80 %  loss 0.2500 (rank 0)\n"), (False, "")],
)
def test_one_rank_prints_a_line_every_ten_seconds_and_reads_the_loss_only_then(monkeypatch, capsys, enabled, printed):
    clock = Clock()
    reads = []
    monkeypatch.setattr(progress, "time", clock)
    line = Progress("epoch 1/3", 100, enabled=enabled)
    for step in range(1, 101):
        clock.seconds += 0.25
        line.update(step, lambda: reads.append(1) or 0.25)
    assert capsys.readouterr().out == printed
    assert len(reads) == printed.count("\n")
