"""Reads the commands of docs/frameworks.md, so that the tests run what the page prints."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "frameworks.md"


def commands(section, part):
    """Return the indented lines of `part` ("Install", "Launch") of the section with this heading."""
    text = re.search(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)[1]
    block = re.search(rf"^{part}\b[^:]*:.*?\n\n((?:    [^\n]*\n|\n)+)", text, re.MULTILINE | re.DOTALL)[1]
    return [line.strip() for line in block.splitlines() if line.strip()]
