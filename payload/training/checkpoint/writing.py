"""Writes a state as a whole file or not at all."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import torch

from training import TrainingError
from training.files import write_file


def serialise(state: Mapping) -> memoryview:
    """Return ``state`` as the bytes of a file for ``torch.load``."""
    content = io.BytesIO()  # on a full disk torch.save itself hides the reason: "unexpected pos"
    torch.save(dict(state), content)
    return content.getbuffer()


def write(path: Path, content: memoryview) -> None:
    """Write ``content`` to ``path`` as ``write_file`` does; TrainingError on a failure."""
    try:
        write_file(path, content)
    except OSError as error:
        raise TrainingError(
            f"{path}: cannot be written ({error.strerror}); what was there before is whole: free some "
            "space and start again, or name another directory with --modelpath"
        ) from error
