"""The trained model on disk, complete or not there at all; called by rank 0 of mnist_ddp.py."""

from __future__ import annotations

import io
import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

from training import TrainingError


def make_directory(directory: Path) -> None:
    """Make ``directory`` with its parents; TrainingError if no file can be written in it.

    Trying it out costs a moment before the training, and spares the loss of one: inside a
    container a path that is not bound is read-only.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise TrainingError(
            f"{directory}: cannot be written ({error.strerror}); name another directory with "
            "--modelpath, in a container one that is bound"
        ) from error


def save_model(state: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write ``state`` to ``path`` for ``torch.load``, as CPU tensors.

    A reader of ``path`` sees the old file or the new one, never a part. On a failure the old
    file stays, nothing else is left behind, and TrainingError is raised.
    """
    content = io.BytesIO()  # on a full disk torch.save itself hides the reason: "unexpected pos"
    torch.save({name: tensor.cpu() for name, tensor in state.items()}, content)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise TrainingError(
            f"{path}: cannot be written ({error.strerror}); free some space or name another "
            "directory with --modelpath"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
