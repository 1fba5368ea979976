"""The images that the payload trains on, and the order in which the ranks take them."""

from training.data.batches import GlobalBatchSampler
from training.data.dataset import (
    PIXEL_DEVIATION,
    PIXEL_MEAN,
    Dataset,
    digits_set,
    fingerprint,
    hold_out,
    load_dataset,
    normalise,
)

__all__ = [
    "PIXEL_DEVIATION",
    "PIXEL_MEAN",
    "Dataset",
    "GlobalBatchSampler",
    "digits_set",
    "fingerprint",
    "hold_out",
    "load_dataset",
    "normalise",
]
