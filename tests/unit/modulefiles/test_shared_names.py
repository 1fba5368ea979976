"""Names that files share although each stands alone: in other languages, and in images."""

import re
from pathlib import Path

TREE = Path(__file__).resolve().parents[3]


def texts(*places):
    """The text files of some directories: path relative to the tree -> content."""
    files = [path for place in places for path in (TREE / place).rglob("*") if path.is_file()]
    found = {}
    for path in files:
        if "__pycache__" not in path.parts:
            found[str(path.relative_to(TREE))] = path.read_bytes().decode(errors="replace")
    return found


def test_every_variable_of_our_own_that_a_profile_sets_is_read_by_a_program():
    profiles = "\n".join(text for path, text in texts("modulefiles").items() if "/cluster/" in path)
    programs = "\n".join(texts("runscripts", "payload").values())
    prefixes = re.findall(r'^[A-Z_]+ = "(PYTORCH_[A-Z_]+_)"$', programs, re.MULTILINE)
    assert {"PYTORCH_MULTI_NODE_", "PYTORCH_ONE_NODE_", "PYTORCH_DISTRIBUTED_"} <= set(prefixes)
    ours = set(re.findall(r"^(?:    default_)?policy (PYTORCH_\w+)", profiles, re.MULTILINE))
    named = {name for name in ours if not name.startswith((*prefixes, "PYTORCH_DRIVER_"))}
    assert {"PYTORCH_FABRIC_NAME", "PYTORCH_SOCKET_IFNAME"} <= named
    assert not {name for name in named if f'"{name}"' not in programs}
