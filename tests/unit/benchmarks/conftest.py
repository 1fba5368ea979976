"""Makes `benchmarks`, and the testbed and the payload under it, importable for their tests."""

import sys

from repository import TREE

sys.path[:0] = [str(TREE), str(TREE / "tests"), str(TREE / "payload")]
