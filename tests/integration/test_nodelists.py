"""Node lists, compared with `scontrol show hostnames`."""

import sys
from pathlib import Path

import pytest

from testbed.cluster import slurm

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "runscripts"))
from pytorch_launch.nodelist import hosts  # noqa: E402

pytestmark = pytest.mark.testbed

LISTS = [
    "nid[001001-001004]",
    "nid001001",
    # names of nodes of LUMI, Perlmutter and Frontier
    "nid[005042-005043,005050,005061-005070],nid007001",
    "nid[001000-001003,200256-200259]",
    "frontier[00001-00016,09472],frontier00100",
    # systems with two numbers in a name
    "x1000c[0-7]s[0-1]b[0-1]n[0-1]",
    "c457-[011-012],c454-[021,064],c427-032",
    "rack[0-3]_blade[08-11]",
    "rack[1-2]node[1-3]",
    "r[1-2][04-05,7]",
    # width
    "nid[0051]",
    "n[8-12]",
    "n[098-101]",
    "n[01-3]",
    "n[1-03]",
    "n[9,10,011,0012]",
    # order and repetitions
    "node10,node2",
    "b[3-4,1],a",
    "n[1-3,2-4],n2",
    "a[3,1]b[2,1]c[5-6]",
    "a[1-2]b[3-4]c[5-6]d[7-8],e",
    "linux[0-64,128]",
    "[1-3]",
]


def show_hostnames(testbed, text):
    """Return the hosts of a node list as Slurm expands it."""
    return slurm.query(testbed.layout, ["scontrol", "show", "hostnames", text]).split()


@pytest.mark.parametrize("text", LISTS)
def test_a_list_is_expanded_as_slurm_expands_it(testbed, text):
    assert hosts(text) == show_hostnames(testbed, text)


@pytest.mark.parametrize("text", ["gpu[001-002]-ib", "unit[0-31]rack"])
def test_text_after_the_last_bracket_is_parsed_unlike_in_slurm(testbed, text):
    assert show_hostnames(testbed, text) == []
    assert hosts(text)
