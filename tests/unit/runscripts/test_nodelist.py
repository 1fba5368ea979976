"""The node list grammar, with python-hostlist as the oracle; Slurm is it in tests/integration/test_nodelists.py."""

import hostlist
import pytest
from pytorch_launch.nodelist import MOST_HOSTS, NodeListError, hosts
from tables import name, table

LISTS = """
n1
n1,n2,n1
nid[0051-0053,0060],login1
rack[1-2]n[09-10]
rack[1-2,07]-node[001-003]x,b
n[01-3],m[1-03],[7-8]
n[9-11]-ib.x_y,n[1,1],n[5-5]
"""


@pytest.mark.parametrize("text", LISTS.split())
def test_a_list_means_the_same_to_python_hostlist(text):
    """With the repetitions, which Slurm keeps."""
    assert hosts(text) == hostlist.expand_hostlist(text, allow_duplicates=True)


def test_of_three_brackets_the_last_counts_fastest_and_then_the_first():
    """As Slurm counts them."""
    assert hosts("a[1-2]b[1-2]c[1-2]") == [f"a{a}b{b}c{c}" for b in (1, 2) for a in (1, 2) for c in (1, 2)]


@pytest.mark.parametrize("text", ["n[0-65536]", "a[1-9],b[1-65528]", "a[1-300]b[1-300]", "n[000000001-999999999]"])
def test_more_hosts_than_a_cluster_has_are_refused_where_they_would_be_expanded(text):
    with pytest.raises(NodeListError, match="more than 65536 hosts"):
        hosts(text)
    assert len(hosts(f"n[1-{MOST_HOSTS}]")) == MOST_HOSTS


#: Malformed lists.
FAULTS = """
fault                      | lists
empty name                 | n1, ,n1 n1,,b
stray ';'                  | n1;rm
stray 'ø'                  | nød1
unmatched bracket          | n[1-2 n1,m[1],n[1,2 n1] n[1]] n[[1]] n[1-2,m[3] n]1[
'' in place of a number    | n[] n[1,] n[1-] n[-1]
'2-3' in place of a number | n[1-2-3]
'1a' in place              | n[1a]
'1x' in place              | n[12-1x]
'٣' in place               | n[٣]
reversed range 3-1         | n[7,3-1]
reversed range 2-1         | n1,b[2-1]
'999999999999999999' in place of a number | n[1-9999999999999999999]
"""


@pytest.mark.parametrize("row", table(FAULTS), ids=name)
def test_a_malformed_list_is_an_error_that_names_the_fault(row):
    for text in row["lists"].split():
        with pytest.raises(NodeListError) as raised:
            hosts(text)
        assert row["fault"] in raised.value.fault and f"{text!r} has" in str(raised.value)


@pytest.mark.parametrize(("text", "fault"), [("", "empty name"), ("a b", "stray ' '"), ("a\n", r"stray '\n'")])
def test_white_space_is_an_error(text, fault):
    with pytest.raises(NodeListError) as raised:
        hosts(text)
    assert fault in raised.value.fault and "\n" not in str(raised.value)
