"""EasyBuild for the testbed: the pinned release from PyPI in a virtual environment."""

import shutil
import sys
from pathlib import Path

from testbed.progress import run, step

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
WRAPPER = Path(__file__).with_name("eb")


def provide(layout):
    """Put ``eb`` on the testbed's PATH."""
    stamp = layout.eb_venv / "requirements.txt"
    if not stamp.exists() or stamp.read_text() != REQUIREMENTS.read_text():
        with step("installing EasyBuild"):
            shutil.rmtree(layout.eb_venv, ignore_errors=True)
            run([sys.executable, "-m", "venv", layout.eb_venv])
            run([layout.eb_venv / "bin" / "pip", "install", "-q", "-r", REQUIREMENTS],
                advice="Is the Python package index reachable?")  # fmt: skip
            shutil.copy(REQUIREMENTS, stamp)
    shutil.copy(WRAPPER, layout.bin / "eb")
