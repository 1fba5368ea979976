"""The node list grammar, with python-hostlist as the oracle; Slurm is it in tests/integration/test_nodelists.py."""

import random

import hostlist
import pytest
from pytorch_launch.nodelist import MOST_HOSTS, NodeListError, hosts

SEED = 20250827


def expected(text):
    """What python-hostlist makes of a list, with the repetitions, which Slurm keeps."""
    return hostlist.expand_hostlist(text, allow_duplicates=True)


def random_name(choose):
    """Text and brackets in any order, as `rack[1-2,07]-node[001-100]x`."""
    parts = []
    for _ in range(choose.randint(1, 3)):
        parts.append("".join(choose.choices("abcxyz0189-._", k=choose.randint(0 if parts else 1, 4))))
        if choose.random() < 0.6:
            ranges = []
            for _ in range(choose.randint(1, 3)):
                low = choose.randint(0, 120)
                high = low + choose.randint(0, 6)
                low, high = (f"{number:0{choose.randint(1, 5)}}" for number in (low, high))
                ranges.append(f"{low}-{high}" if choose.random() < 0.5 else low)
            parts.append(f"[{','.join(ranges)}]")
    return "".join(parts)


def test_random_lists_mean_the_same_to_python_hostlist():
    choose = random.Random(SEED)  # noqa: S311  (a repeatable test, no secret)
    compared = {1: 0, 2: 0, 3: 0}
    for _ in range(3000):
        names = [random_name(choose) for _ in range(choose.randint(1, 4))]
        text = ",".join(names)
        every, oracle = hosts(text), expected(text)
        brackets = max(name.count("[") for name in names)
        order = sorted if brackets > 2 else list  # the order of three is Slurm's
        assert order(every) == order(oracle), f"seed {SEED}: {text}"
        assert every[0] == oracle[0], f"seed {SEED}: {text}"
        compared[max(brackets, 1)] += 1
    assert min(compared.values()) > 300


@pytest.mark.parametrize(
    ("text", "position"),
    [("n[0-65536]", 0), ("a[1-9],b[1-65528]", 7), ("a[1-300]b[1-300]", 0), ("n[000000001-999999999]", 0)],
)
def test_more_hosts_than_a_cluster_has_are_refused_where_they_would_be_expanded(text, position):
    with pytest.raises(NodeListError, match="more than 65536 hosts") as raised:
        hosts(text)
    assert raised.value.position == position
    assert len(hosts(f"n[1-{MOST_HOSTS}]")) == MOST_HOSTS


def test_whatever_is_accepted_means_the_same_to_python_hostlist():
    choose = random.Random(SEED)  # noqa: S311  (a repeatable test, no secret)
    accepted = refused = 0
    for _ in range(8000):
        text = "".join(choose.choices("n012[]-, ", k=choose.randint(0, 9)))
        try:
            found = hosts(text)
        except NodeListError:
            refused += 1
        else:
            accepted += 1
            assert found == expected(text), f"seed {SEED}: {text}"
    assert accepted > 200
    assert refused > 500


#: Malformed lists, and the position of the fault.
FAULTS = {
    "empty name": {"": 0, "n1,": 3, ",n1": 0, "n1,,b": 3},
    "stray ' '": {"a b": 1},
    r"stray '\n'": {"a\n": 1},
    "stray ';'": {"n1;rm": 2},
    "stray 'ø'": {"nød1": 1},
    "unclosed bracket": {"n[1-2": 1, "n1,m[1],n[1,2": 9},
    "unopened bracket": {"n1]": 2, "n[1]]": 4},
    "'[' inside": {"n[[1]]": 2},
    "'m' inside": {"n[1-2,m[3]": 6},
    "empty range": {"n[]": 2, "n[1,]": 4, "n[1-]": 4, "n[-1]": 2},
    "'-' inside": {"n[1-2-3]": 5},
    "' ' inside": {"n[1, 2]": 4},
    "'a' inside": {"n[1a]": 3},
    "'x' inside": {"n[12-1x]": 6},
    "'٣' inside": {"n[٣]": 2},
    "reversed range 3-1": {"n[7,3-1]": 4},
    "reversed range 2-1": {"n1,b[2-1]": 5},
    "reversed range 4-2": {"n[1-3]m[4-2]": 8},
    "number of 5000 digits": {"n[1-" + 5000 * "9" + "]": 4},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_malformed_list_is_an_error_that_reports_the_position(fault):
    for text, position in FAULTS[fault].items():
        with pytest.raises(NodeListError) as raised:
            hosts(text)
        assert (raised.value.text, raised.value.position) == (text, position)
        assert fault in raised.value.fault and f"{text!r} has" in str(raised.value)
        assert f"at character {position + 1}. " in str(raised.value) and "\n" not in str(raised.value)
