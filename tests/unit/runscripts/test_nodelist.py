"""The node list grammar, with python-hostlist as the oracle."""

import random

import hostlist
import pytest
from pytorch_launch.nodelist import NodeListError, first_host


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("login1", "login1"),
        ("nid[0051]", "nid0051"),
        ("nid[001001-001004]", "nid001001"),
        ("r[1-2]n[01-04]", "r1n01"),
        ("gpu[001-002]-ib", "gpu001-ib"),
        ("a,b[1,3-4],c", "a"),
        ("b[3-4,1],a", "b3"),
        ("node10,node2", "node10"),
        ("n[8-12]", "n8"),
        ("n[01-3]", "n01"),
        ("x.cluster_a.example,y", "x.cluster_a.example"),
    ],
)
def test_the_first_host_is_found_without_sorting(text, host):
    assert first_host(text) == host == hostlist.expand_hostlist(text)[0]


def test_a_range_of_a_billion_nodes_is_not_expanded():
    assert first_host("n[000000001-999999999]") == "n000000001"


def random_name(choose):
    """Text and brackets in any order, as `rack[1-2,07]-node[001-100]x`."""
    parts = []
    for _ in range(choose.randint(1, 3)):
        parts.append("".join(choose.choices("abcxyz0189-._", k=choose.randint(1, 4))))
        if choose.random() < 0.6:
            ranges = []
            for _ in range(choose.randint(1, 3)):
                width = choose.randint(1, 5)
                low = choose.randint(0, 120)
                high = low + choose.randint(0, 9)
                ranges.append(f"{low:0{width}}-{high:0{width}}" if choose.random() < 0.5 else f"{low:0{width}}")
            parts.append(f"[{','.join(ranges)}]")
    return "".join(parts)


def test_a_thousand_random_lists_start_where_python_hostlist_starts():
    choose = random.Random(20250827)  # noqa: S311  (a repeatable test, no secret)
    for _ in range(1000):
        text = ",".join(random_name(choose) for _ in range(choose.randint(1, 4)))
        assert first_host(text) == hostlist.expand_hostlist(text)[0], text


def test_whatever_is_accepted_means_the_same_to_python_hostlist():
    choose = random.Random(42)  # noqa: S311  (a repeatable test, no secret)
    accepted = refused = 0
    for _ in range(20000):
        text = "".join(choose.choices("n012[]-, ", k=choose.randint(0, 9)))
        try:
            host = first_host(text)
        except NodeListError:
            refused += 1
        else:
            accepted += 1
            assert host == hostlist.expand_hostlist(text)[0], text
    assert accepted > 500
    assert refused > 500


@pytest.mark.parametrize(
    ("text", "position", "fault"),
    [
        ("", 0, "empty name"),
        ("a,", 2, "empty name"),
        (",a", 0, "empty name"),
        ("a,,b", 2, "empty name"),
        ("a b", 1, "stray ' '"),
        ("a\n", 1, r"stray '\n'"),
        ("n1;rm", 2, "stray ';'"),
        ("nød1", 1, "stray 'ø'"),
        ("n[1-2", 1, "never closed"),
        ("n1]", 2, "never opened"),
        ("n[[1]]", 2, "'[' inside"),
        ("n[]", 2, "empty range"),
        ("n[1,]", 4, "empty range"),
        ("n[1-]", 4, "empty range"),
        ("n[-1]", 2, "empty range"),
        ("n[1-2-3]", 5, "'-' inside"),
        ("n[1, 2]", 4, "' ' inside"),
        ("n[1a]", 3, "'a' inside"),
        ("n[٣]", 2, "'٣' inside"),
        ("n[7,3-1]", 4, "backward range 3-1"),
        ("a,b[2-1]", 4, "backward range 2-1"),
    ],
)
def test_a_malformed_list_is_an_error_that_tells_the_position(text, position, fault):
    with pytest.raises(NodeListError) as raised:
        first_host(text)
    assert raised.value.text == text
    assert raised.value.position == position
    assert fault in raised.value.fault
    assert f"{text!r} has" in str(raised.value)
    assert f"at character {position + 1}:" in str(raised.value)
    assert "\n" not in str(raised.value)
