"""Where this tree is."""

from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
