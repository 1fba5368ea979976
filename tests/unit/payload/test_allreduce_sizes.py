"""The all-reduce check: sizes of messages, and the thresholds of a profile."""

import argparse

import pytest
from allreduce_check import message_sizes
from training.allreduce import Threshold, read_size, read_thresholds, show_size


@pytest.mark.parametrize(
    ("text", "size"), [("4", 4), ("64K", 65536), ("64k", 65536), ("128MiB", 2**27), ("1GB", 2**30)]
)
def test_a_size_is_read(text, size):
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-4", "4.5K", "K", "4T"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size"):
        read_size(text)


def test_a_size_is_shown_in_the_largest_unit_that_divides_it():
    assert [show_size(size) for size in (4, 1000, 1024, 2**27, 3 * 2**29)] == [
        "4 B",
        "1000 B",
        "1 KiB",
        "128 MiB",
        "1536 MiB",
    ]


def test_sizes_go_up_by_four_and_hold_those_of_the_thresholds():
    assert message_sizes(1024, [Threshold(1, 128, None), Threshold(1, 4096, None)]) == [4, 16, 64, 128, 256, 1024]
    assert message_sizes(2**28, [])[-1] == 2**28
    assert message_sizes(1000, [])[-1] == 256


def test_a_profiles_thresholds_are_read():
    assert read_thresholds("80.75@128MiB@2x8 10@1M") == [
        Threshold(80.75, 2**27, (2, 8)),
        Threshold(10, 2**20, None),
    ]
    assert read_thresholds("") == []


@pytest.mark.parametrize("text", ["80", "80@", "@1M", "80@1M@2", "80@1M@2x", "fast@1M"])
def test_what_is_no_threshold_is_refused_with_an_example(text):
    with pytest.raises(argparse.ArgumentTypeError, match="such as 80.75@128MiB@2x8"):
        read_thresholds(text)
