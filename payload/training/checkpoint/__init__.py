# SPDX-License-Identifier: BSD-3-Clause
"""Checkpoints and the trained model on disk: written completely or not at all, and read without trust."""

from training.checkpoint.directory import Checkpoints, make_directory, open_checkpoints
from training.checkpoint.restoring import Position
from training.checkpoint.run import Run
from training.checkpoint.weights import load_model, save_model

__all__ = ["Checkpoints", "Position", "Run", "load_model", "make_directory", "open_checkpoints", "save_model"]
