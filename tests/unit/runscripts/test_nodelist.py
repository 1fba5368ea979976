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


@pytest.mark.slow
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


@pytest.mark.parametrize("text", ["n[0-65536]", "a[1-9],b[1-65528]", "a[1-300]b[1-300]", "n[000000001-999999999]"])
def test_more_hosts_than_a_cluster_has_are_refused_where_they_would_be_expanded(text):
    with pytest.raises(NodeListError, match="more than 65536 hosts"):
        hosts(text)
    assert len(hosts(f"n[1-{MOST_HOSTS}]")) == MOST_HOSTS


#: Malformed lists.
FAULTS = {
    "empty name": ("", "n1,", ",n1", "n1,,b"),
    "stray ' '": ("a b",),
    r"stray '\n'": ("a\n",),
    "stray ';'": ("n1;rm",),
    "stray 'ø'": ("nød1",),
    "unmatched bracket": ("n[1-2", "n1,m[1],n[1,2", "n1]", "n[1]]", "n[[1]]", "n[1-2,m[3]", "n]1["),
    "'' in place of a number": ("n[]", "n[1,]", "n[1-]", "n[-1]"),
    "'2-3' in place of a number": ("n[1-2-3]",),
    "' 2' in place": ("n[1, 2]",),
    "'1a' in place": ("n[1a]",),
    "'1x' in place": ("n[12-1x]",),
    "'٣' in place": ("n[٣]",),
    "reversed range 3-1": ("n[7,3-1]",),
    "reversed range 2-1": ("n1,b[2-1]",),
    f"{18 * '9'}' in place of a number": ("n[1-" + 5000 * "9" + "]",),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_malformed_list_is_an_error_that_names_the_fault(fault):
    for text in FAULTS[fault]:
        with pytest.raises(NodeListError) as raised:
            hosts(text)
        assert fault in raised.value.fault and f"{text!r} has" in str(raised.value) and "\n" not in str(raised.value)
