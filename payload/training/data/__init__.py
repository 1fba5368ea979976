# SPDX-License-Identifier: BSD-3-Clause
"""The images that the payload trains on, and the order in which the ranks take them."""

from training.data.batches import GlobalBatchSampler, device_batches
from training.data.dataset import Dataset, digits_set, fingerprint, load_dataset
from training.data.splits import PIXEL_DEVIATION, PIXEL_MEAN, Splits, hold_out, normalise, split

__all__ = [
    "PIXEL_DEVIATION",
    "PIXEL_MEAN",
    "Dataset",
    "GlobalBatchSampler",
    "Splits",
    "device_batches",
    "digits_set",
    "fingerprint",
    "hold_out",
    "load_dataset",
    "normalise",
    "split",
]
