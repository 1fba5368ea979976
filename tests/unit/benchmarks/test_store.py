"""What rank 0 serves: a real store of a few clients, and larger worlds by arithmetic."""

import json
import subprocess
import sys

import pytest

from benchmarks import store

NCCL = [
    {"clients": 256, "connections": 256, "bytes": 120_000, "files": 256, "memory": 350_000},
    {"clients": 512, "connections": 512, "bytes": 240_000, "files": 512, "memory": 600_000},
]
GLOO = [
    {"clients": 16, "connections": 16, "bytes": 100_000, "files": 16, "memory": 1},
    {"clients": 32, "connections": 32, "bytes": 500_000, "files": 32, "memory": 1},
]


def test_a_real_store_has_a_connection_and_a_file_for_each_client():
    output = subprocess.check_output([sys.executable, store.PROGRAM, "nccl", "4"], text=True, stderr=subprocess.DEVNULL)
    row = json.loads(output)
    assert (row["clients"], row["connections"], row["files"]) == (4, 4, 4)
    assert row["bytes"] > 4 * 128  # the identity that each rank reads


def test_a_measured_world_has_its_own_row():
    served = store.Measured(NCCL, GLOO).served(256)
    assert not served.is_computed
    assert (served.connections, served.bytes) == (256, 120_000)


def test_a_larger_world_is_on_the_line_through_the_largest_two_and_gloo_grows_with_the_square():
    served = store.Measured(NCCL, GLOO).served(32_768)
    assert served.is_computed
    assert (served.connections, served.files, served.bytes) == (32_768, 32_768, 15_360_000)
    assert served.gloo_bytes == 500_000 * 1024**2


@pytest.mark.parametrize(
    ("ranks", "settings"),
    [
        (512, "–"),
        (2048, "`ulimit -n 4096`"),
        (4096, "`ulimit -n 8192`"),
        (32_768, "`ulimit -n 65536`, `net.core.somaxconn=32768`"),
    ],
)
def test_limits_are_named_from_the_size_that_reaches_them(ranks, settings):
    assert store.settings(ranks) == settings
