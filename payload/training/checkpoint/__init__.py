"""Checkpoints and the trained model on disk: whole or not there at all, and read without trust."""

from training.checkpoint.directory import Checkpoints, make_directory
from training.checkpoint.run import Position, Run
from training.checkpoint.weights import load_model, save_model

__all__ = ["Checkpoints", "Position", "Run", "load_model", "make_directory", "save_model"]
