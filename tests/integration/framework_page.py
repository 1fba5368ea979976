"""Reads the commands of docs/frameworks.md, so that the tests run what the page prints."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "frameworks.md"


def commands(section, part):
    """Return the lines of `part` ("Install", "Launch") of the section with this heading, or of the page's beginning."""
    first, *sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    text = next(text for text in sections if text.startswith(f"{section}\n"))
    pattern = re.compile(rf"^{part}\b[^:]*:.*?\n\n((?:    [^\n]*\n|\n)+)", re.MULTILINE | re.DOTALL)
    block = pattern.search(text)
    if not block and part == "Install":
        anchor = re.sub(r"[^\w -]", "", section.lower()).replace(" ", "-")
        return re.findall(rf"^\| \[.*\(#{anchor}\).*`(pip install [^`]*)`", first, re.MULTILINE)
    return [line.strip() for line in (block or pattern.search(first))[1].splitlines() if line.strip()]
