"""How far an epoch is: on a terminal a bar that is gone at the end, in a log a line now and then."""

import io

import pytest
from training import progress
from training.progress import CLEAR_LINE, Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    """A clock that stands still until it is set forward."""

    seconds = 100.0

    def perf_counter(self):
        return self.seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setenv("TERM", "xterm")
    return clock


def advance(bar, clock, *, steps, seconds_each, read=lambda: 0.25):
    for step in range(bar.first_step + 1, steps + 1):
        clock.seconds += seconds_each
        bar.update(step, read)


LINES = "epoch 1/3  40 %  loss 0.2500 (rank 0)\nepoch 1/3  80 %  loss 0.2500 (rank 0)\n"


@pytest.mark.parametrize(("stream", "term"), [(io.StringIO, "xterm"), (Terminal, "dumb")])
def test_a_log_and_a_dumb_terminal_get_a_plain_line_every_ten_seconds(clock, monkeypatch, stream, term):
    monkeypatch.setenv("TERM", term)
    output = stream()
    with Progress("epoch 1/3", 100, stream=output) as bar:
        advance(bar, clock, steps=100, seconds_each=0.25)
    assert output.getvalue() == LINES


@pytest.mark.parametrize("first_step", [0, 60])  # the rate is that of the steps since a resume
def test_a_terminal_shows_bar_loss_rate_and_time_left_in_one_line(clock, first_step):
    terminal = Terminal()
    bar = Progress("epoch 2/3", 400, first_step=first_step, stream=terminal)
    advance(bar, clock, steps=100, seconds_each=0.5)
    *_, last = terminal.getvalue().split(CLEAR_LINE)
    assert last == "epoch 2/3  [####------------]  25 %  loss 0.2500  2 steps/s  0:02:30 left"
    assert "\n" not in terminal.getvalue()


def test_the_bar_is_gone_after_an_error_and_fits_a_narrow_terminal(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
    with pytest.raises(ZeroDivisionError), Progress("epoch 1/3", 10, stream=terminal) as bar:
        advance(bar, clock, steps=10, seconds_each=1)
        raise ZeroDivisionError
    assert terminal.getvalue().endswith(CLEAR_LINE)
    assert max(map(len, terminal.getvalue().split(CLEAR_LINE))) == 39


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_rank_that_is_not_to_report_writes_and_reads_nothing(clock, stream):
    output = stream()
    with Progress("epoch 1/3", 100, stream=output, enabled=False) as bar:
        advance(bar, clock, steps=100, seconds_each=1, read=None)
    assert output.getvalue() == ""
