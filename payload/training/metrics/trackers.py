"""Opens TensorBoard and Weights & Biases, which are imported only when they are used."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from training import TrainingError
from training.files import read_file, write_file


def open_tensorboard(directory: Path, options: Mapping[str, object], first_epoch: int):
    """Return a SummaryWriter to ``directory``/tensorboard that hides the epochs that will be repeated."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise TrainingError(
            f"--tensorboard needs a package that is not installed ({error}). Run: pip install tensorboard"
        ) from None
    writer = SummaryWriter(directory / "tensorboard", purge_step=first_epoch + 1)
    if first_epoch == 0:
        writer.add_text("options", "\n".join(f"    {name}: {options[name]}" for name in options))
    return writer


def open_wandb(directory: Path, options: Mapping[str, object], project: str, is_new: bool):
    """Return a run of Weights & Biases; a resumed training continues the run that it had."""
    try:
        import wandb
    except ImportError as error:
        raise TrainingError(
            f"--wandb needs a package that is not installed ({error}). Run: pip install wandb"
        ) from None
    name = directory / "wandb" / "id"
    name.parent.mkdir(exist_ok=True)
    identity = read_file(name, 100).decode(errors="replace") if name.exists() and not is_new else ""
    if not identity:  # the file may be empty after a kill
        identity = secrets.token_hex(4)
        write_file(name, identity.encode())
    try:
        return wandb.init(
            project=project,
            id=identity,
            resume="allow",
            dir=directory,
            config={
                name: value if isinstance(value, (int, float)) else str(value)
                for name, value in options.items()
            },
            settings=wandb.Settings(console="off"),  # the output is in the job's log
        )
    except wandb.errors.Error as error:
        raise TrainingError(
            f"--wandb {project}: {str(error).splitlines()[0].rstrip('.')}. Log in with `wandb login`, or "
            "export WANDB_MODE=offline and run `wandb sync` later"
        ) from None
