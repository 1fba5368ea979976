# SPDX-License-Identifier: BSD-3-Clause
"""The small convolutional network of the examples."""

from __future__ import annotations

from torch import Tensor, nn


class Unshuffle(nn.Module):
    """Turns each 2 x 2 pixels into 4 channels: float32 [n, 1, 28, 28] into [n, 4, 14, 14].

    Like nn.PixelUnshuffle(2), but correct for zero images: torch 2.13 returns those unchanged, and
    a rank with an empty share of a batch would fail in the next layer.
    """

    def forward(self, images: Tensor) -> Tensor:
        count, _, height, width = images.shape
        blocks = images.reshape(count, height // 2, 2, width // 2, 2)
        return blocks.permute(0, 2, 4, 1, 3).reshape(count, 4, height // 2, width // 2)


def build_model() -> nn.Module:
    """Return a network from float32 images [n, 1, 28, 28] to the scores [n, 10] of the digits.

    It starts with 4 channels, because a convolution of one channel leaves most of a CPU's vector unit
    idle. It has no dropout and no batch normalisation: random masks and batch statistics differ between
    ranks, so the result would depend on the number of ranks.
    """
    return nn.Sequential(
        Unshuffle(),
        nn.Conv2d(4, 32, kernel_size=3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1024, 10),
    )
