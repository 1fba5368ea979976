"""The rows on training, without training."""

from pathlib import Path

import pytest

from benchmarks.experiments import training
from testbed.layout import TestbedError as Error  # pytest would take it for a class of tests


class Programs:
    """Replaces a Session: returns prepared outputs and records the commands."""

    def __init__(self, *outputs):
        self.outputs = list(outputs)
        self.commands = []

    def environment(self, *_commands):
        """The variables that the experiments read."""
        return {"MNIST_ROOT": "/data"}

    def run(self, command, _env):
        """The next of the outputs."""
        self.commands.append([str(word) for word in command])
        return self.outputs.pop(0)


def trained(accuracy, seconds):
    """The output of a training."""
    return f"epoch 2/2  test accuracy {accuracy} %\ntest accuracy: {accuracy} %\ntraining time: {seconds} s\n"


def test_of_the_textbooks_loop_a_part_is_timed_with_another_seed_in_each_pair():
    programs = Programs("seconds per epoch: 80.5\n", "seconds per epoch: 81.0\n")
    _, textbook = training.time_to_99(programs)
    assert (textbook(), textbook()) == (161.0, 162.0)
    assert [command[3:5] for command in programs.commands] == [["--seed", "0"], ["--seed", "1"]]


def test_a_training_that_misses_99_percent_costs_its_time_and_the_next_ones():
    programs = Programs(trained(98.99, 4.5), trained(99.0, 5.0), trained(99.1, 4.0))
    ours, _ = training.time_to_99(programs)
    assert (ours(), ours()) == (9.5, 4.0)
    assert [command[-2:] for command in programs.commands] == [["--seed", "0"], ["--seed", "1"], ["--seed", "2"]]


def test_three_trainings_that_miss_99_percent_are_an_error():
    ours, _ = training.time_to_99(Programs(*3 * [trained(98.0, 4.5)]))
    with pytest.raises(Error, match="three times"):
        ours()


def test_a_training_without_its_last_lines_is_an_error():
    ours, _ = training.time_to_99(Programs("epoch 1/2\n"))
    with pytest.raises(Error, match="no line with 'training time:'"):
        ours()


def test_one_program_measures_both_sides_of_health():
    programs = Programs("CPU seconds without --health: 0.050000000\nCPU seconds with --health: 0.050010000\n")
    assert training.health(programs)() == {"health": (0.05001, 0.05)}
    assert programs.commands[0][1].endswith("benchmarks/programs/health_cost.py")


def test_lone_runs_count_together_and_two_ranks_once():
    programs = Programs("images/s 20000\n", "images/s 10000\nimages/s 14000\n")
    together, lone = training.two_ranks(programs)
    assert (together(), lone()) == (3.0, 2.5)
    assert [command[-2:] for command in programs.commands] == [["--batch-per-rank", "256"]] * 2


def test_a_world_that_fell_apart_is_an_error():
    together, _ = training.two_ranks(Programs("images/s 10000\nimages/s 14000\n"))
    with pytest.raises(Error, match="2 runs, not of 1"):
        together()


def test_one_program_measures_both_sides_of_save():
    lost = {"an asynchronous": 0.25, "a synchronous": 1.5}
    programs = Programs("".join(f"seconds lost to {kind} checkpoint: {lost[kind]}\n" for kind in lost))
    programs.scratch = Path("/scratch")
    assert training.saves(programs)() == {"save": (0.25, 1.5)}
    assert programs.commands[0][-1] == "/scratch/save/checkpoints"
