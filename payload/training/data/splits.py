# SPDX-License-Identifier: BSD-3-Clause
"""The images of a training on its device: to train on, to select the best epoch by, to test on."""

from __future__ import annotations

from typing import NamedTuple, Tuple

import torch
from torch import Tensor

from training import TrainingError
from training.data.dataset import Dataset

# Mean and standard deviation of the pixels of MNIST's training images, on a scale of 0 to 1.
PIXEL_MEAN = 0.1307
PIXEL_DEVIATION = 0.3081

Samples = Tuple[Tensor, Tensor]


class Splits(NamedTuple):
    """Images [n, 1, 28, 28] and labels [n] to train on, to select the best epoch by, and to test on."""

    training: Samples
    selection: Samples
    test: Samples


def split(data: Dataset, device: torch.device, validation: float | None, seed: int) -> Splits:
    """Normalise all images on ``device``, and hold out a share of ``validation`` of the training images.

    Without one, the test images also select the best epoch. Raises TrainingError as ``hold_out`` does.
    """
    training = normalise(data.train_images, device), data.train_labels.to(device)
    test = normalise(data.test_images, device), data.test_labels.to(device)
    if not validation:
        return Splits(training, test, test)
    return Splits(*hold_out(*training, validation, seed), test)


def normalise(images: Tensor, device: torch.device) -> Tensor:
    """Turn uint8 [n, 28, 28] into float32 [n, 1, 28, 28] on ``device``, with mean 0 and standard deviation 1."""
    pixels = images.to(device).unsqueeze(1).float()
    return pixels.div_(255).sub_(PIXEL_MEAN).div_(PIXEL_DEVIATION)


def hold_out(images: Tensor, labels: Tensor, share: float, seed: int) -> tuple[Samples, Samples]:
    """Split samples at random into those to train on and a ``share`` to select the best epoch by.

    ``images`` [N, ...] and ``labels`` [N] come back as two pairs, of N - n and of n samples, where n is
    N times the share, rounded. The same ``seed`` gives the same split. Raises TrainingError if one
    part would be empty.
    """
    count = round(share * len(labels))
    if not 0 < count < len(labels):
        raise TrainingError(f"--validation {share:g} of {len(labels)} training images is {count}. Use another share")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
    held, kept = order[:count], order[count:]
    return (images[kept], labels[kept]), (images[held], labels[held])
