#!/usr/bin/env python3
"""Times a part of an epoch on MNIST, trained as in a textbook: textbook_mnist.py DATA SEED BATCHES.

Side B of the row `time-to-99`. The network and all settings are those of PyTorch's own example
(https://github.com/pytorch/examples, mnist): two convolutions of 32 and 64 channels, dropout, Adadelta at 1.0 with a
decay of 0.7 an epoch, batches of 64; images are converted to tensors and normalised one by one, as torchvision's
transforms do.
"""

import sys
import time
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "payload"))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402
from training.data import PIXEL_DEVIATION, PIXEL_MEAN, load_dataset  # noqa: E402

#: Batches before the clock starts: the first ones allocate memory.
UNTIMED = 5


class Images(Dataset):
    """Pairs of an image, float32 [1, 28, 28], and its label, each made when it is read."""

    def __init__(self, images, labels):
        self.images = images
        self.labels = labels.tolist()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        pixels = self.images[index].unsqueeze(0).float().div(255)
        return pixels.sub(PIXEL_MEAN).div(PIXEL_DEVIATION), self.labels[index]


def build_model():
    """Return the network, from images [n, 1, 28, 28] to log-probabilities [n, 10]."""
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
        nn.LogSoftmax(dim=1),
    )


def time_epoch(data, *, seed, batches):
    """Return the seconds of an epoch, from `batches` of its batches after a few that are not timed."""
    torch.manual_seed(seed)
    loader = DataLoader(Images(data.train_images, data.train_labels), batch_size=64, shuffle=True)
    model = build_model()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    for step, (images, labels) in enumerate(islice(loader, UNTIMED + batches)):
        if step == UNTIMED:
            start = time.perf_counter()
        optimizer.zero_grad()
        F.nll_loss(model(images), labels).backward()
        optimizer.step()
    return (time.perf_counter() - start) / (step + 1 - UNTIMED) * len(loader)


if __name__ == "__main__":
    directory, number, timed = sys.argv[1:]
    seconds = time_epoch(load_dataset(Path(directory)), seed=int(number), batches=int(timed))
    print(f"seconds per epoch: {seconds:.1f}")
