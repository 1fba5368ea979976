"""The pages: the README links each, and the messages in docs/troubleshooting.md are those of the programs."""

import ast
import itertools
import re

from repository import TREE

PAGES = [TREE / "README.md", TREE / "CONTRIBUTING.md", TREE / "CHANGELOG.md", *sorted((TREE / "docs").rglob("*.md"))]
# A link in a page: [text](target)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


def test_the_readme_links_every_page():
    linked = {(TREE / target.partition("#")[0]).resolve() for target in LINK.findall((TREE / "README.md").read_text())}
    assert set(PAGES) - linked - {TREE / "README.md"} == set()


def texts_of_the_tree():
    """Yield all texts that the programs may print; adjacent literals are joined like in Python."""
    parts = ["bin", "libexec", "easyblocks", "modulefiles", "payload", "runscripts"]
    files = itertools.chain.from_iterable((TREE / part).rglob("*") for part in parts)
    for path in files:
        if path.is_dir() or path.suffix == ".pyc":
            continue
        text = path.read_text(errors="replace")
        yield text
        if path.suffix == ".py":
            literals = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
            yield from (node.value for node in literals if isinstance(node.value, str))


def test_messages_on_the_page_of_troubleshooting_are_messages_of_the_tree():
    """A heading is one or more messages in code spans, and the program in brackets unless it is ours."""
    page = (TREE / "docs" / "troubleshooting.md").read_text()
    entries = re.findall(r"^### (.*)$", page, re.MULTILINE)
    ours = [entry for entry in entries if not entry.endswith(")")]
    assert len(ours) > 50
    everything = "\n".join(texts_of_the_tree())
    for message in re.findall(r"`([^`]+)`", "\n".join(ours)):
        for part in message.split("..."):
            assert part.strip(" :,") in everything, message
