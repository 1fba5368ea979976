"""Writes a state as a file that torch.load reads, completely or not at all."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import torch

from training import TrainingError
from training.files import write_file


def serialise(state: Mapping) -> memoryview:
    """Return the bytes of a file from which ``torch.load`` reads ``state``."""
    content = io.BytesIO()  # torch.save to a full disk hides the reason: "unexpected pos"
    torch.save(dict(state), content)
    return content.getbuffer()


def write(path: Path, content: memoryview) -> None:
    """Write ``content`` to ``path`` with ``write_file``; TrainingError on a failure."""
    try:
        write_file(path, content)
    except OSError as error:
        raise TrainingError(
            f"{path}: cannot be written ({error.strerror}). The files before it are undamaged: free some "
            "space and start again, or choose another directory with --modelpath"
        ) from error
