"""How far a training is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Position:
    """How far a training is: ``epoch`` epochs, and ``step`` steps of the next.

    ``samples`` and ``loss_sum`` are those of these steps, over all ranks; ``epoch_seconds`` is their time;
    ``seconds`` is the time of all training. The accuracies, in per cent, are those of the last epoch and
    of the best, which is number ``best_epoch``, the first with this accuracy.
    """

    epoch: int = 0
    step: int = 0
    samples: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0
    accuracy: float = 0.0
    best_accuracy: float = 0.0
    best_epoch: int = 0
    epoch_seconds: float = 0.0

    @property
    def is_best(self) -> bool:
        """Whether this is the end of the best epoch."""
        return self.step == 0 and self.epoch == self.best_epoch

    def end_epoch(self, accuracy: float) -> None:
        """Move to the start of the next epoch, after one that reached ``accuracy``."""
        self.epoch += 1
        self.step = self.samples = 0
        self.loss_sum = self.epoch_seconds = 0.0
        self.accuracy = accuracy
        if self.epoch == 1 or accuracy > self.best_accuracy:
            self.best_accuracy, self.best_epoch = accuracy, self.epoch
