"""Draws the pictures of the pages: __main__.py [NAME...]. `website/draw` calls it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from website.pictures import DIRECTORY, PICTURES  # noqa: E402


def main(names):
    """Write the named pictures, by default all; return the exit status."""
    unknown = set(names) - set(PICTURES)
    if unknown:
        print(f"website/draw: no picture {', '.join(unknown)}. There are: {', '.join(PICTURES)}", file=sys.stderr)
        return 2
    for name in names or PICTURES:
        file = DIRECTORY / f"{name}.svg"
        file.write_text(PICTURES[name](), encoding="utf-8")
        print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
