"""Makes `benchmarks`, and the testbed and the payload under it, importable for their tests."""

import sys
from pathlib import Path

TREE = Path(__file__).parents[3]
sys.path[:0] = [str(TREE), str(TREE / "tests"), str(TREE / "payload")]
