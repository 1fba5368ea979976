# SPDX-License-Identifier: BSD-3-Clause
"""The values of each epoch: metrics.jsonl, its curves, TensorBoard and Weights & Biases."""

from training.metrics.curves import draw_curves
from training.metrics.lines import METRICS_FILE, finite_number, read_epochs, read_objects
from training.metrics.record import Metrics

__all__ = ["METRICS_FILE", "Metrics", "draw_curves", "finite_number", "read_epochs", "read_objects"]
