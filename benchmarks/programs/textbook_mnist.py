#!/usr/bin/env python3
"""Trains on MNIST as a textbook does, until it recognises 99 % of the test images; side B of the row `time-to-99`.

The network and all settings are those of PyTorch's own example (https://github.com/pytorch/examples, mnist): two
convolutions of 32 and 64 channels, dropout, Adadelta at 1.0 with a decay of 0.7 an epoch, batches of 64; images are
converted to tensors and normalised one by one, as torchvision's transforms do.
"""

import argparse
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

EPOCHS = 14
#: Batches before the clock of `--batches` starts: the first ones allocate memory.
UNTIMED = 5


class Images(Dataset):
    """Pairs of an image, float32 [1, 28, 28], and its label, each made when it is read."""

    def __init__(self, images, labels):
        self.images = images
        self.labels = labels.tolist()

    def __len__(self):
        """Return the number of images."""
        return len(self.images)

    def __getitem__(self, index):
        """Return image and label number `index`."""
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


@torch.no_grad()
def accuracy(model, loader):
    """Return the share of the loader's images that the model recognises."""
    model.eval()
    right = sum((model(images).argmax(dim=1) == labels).sum().item() for images, labels in loader)
    model.train()
    return right / len(loader.dataset)


def set_up(data, seed):
    """Return the network, its optimizer, and the loader of the training images."""
    torch.manual_seed(seed)
    loader = DataLoader(Images(data.train_images, data.train_labels), batch_size=64, shuffle=True)
    model = build_model()
    return model, torch.optim.Adadelta(model.parameters(), lr=1.0), loader


def take_step(model, optimizer, images, labels):
    """Train on one batch."""
    optimizer.zero_grad()
    F.nll_loss(model(images), labels).backward()
    optimizer.step()


def time_epoch(data, *, seed, batches):
    """Return the seconds of an epoch, from `batches` of its batches after a few that are not timed."""
    model, optimizer, loader = set_up(data, seed)
    steps = iter(loader)
    for images, labels in islice(steps, UNTIMED):
        take_step(model, optimizer, images, labels)
    start = time.perf_counter()
    timed = 0
    for images, labels in islice(steps, batches):
        take_step(model, optimizer, images, labels)
        timed += 1
    return (time.perf_counter() - start) / timed * len(loader)


def train(data, *, seed, target, every):
    """Train until the test accuracy reaches `target`; evaluate after each epoch, and every so many batches if not 0.

    Returns the seconds of training with data loading but without evaluation, the epochs, and the accuracy.
    """
    model, optimizer, train_loader = set_up(data, seed)
    test_loader = DataLoader(Images(data.test_images, data.test_labels), batch_size=1000)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    seconds = 0.0
    for epoch in range(EPOCHS):
        start = time.perf_counter()
        for batch, (images, labels) in enumerate(train_loader, start=1):
            take_step(model, optimizer, images, labels)
            if batch == len(train_loader) or (every and batch % every == 0):
                seconds += time.perf_counter() - start
                reached = accuracy(model, test_loader)
                epochs = epoch + batch / len(train_loader)
                print(f"epoch {epochs:.2f}  test accuracy {100 * reached:.2f} %  after {seconds:.1f} s", flush=True)
                if reached >= target:
                    return seconds, epochs, reached
                start = time.perf_counter()
        schedule.step()
    sys.exit(f"{Path(__file__).name}: {100 * reached:.2f} % after {EPOCHS} epochs, not {100 * target:g} %")


def main():
    """Train once; the last line reports the seconds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="directory of the four MNIST files")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--target", type=float, default=99, metavar="PERCENT", help="(default: %(default)s)")
    parser.add_argument(
        "--every", type=int, default=0, metavar="BATCHES", help="also evaluate after every BATCHES batches"
    )
    parser.add_argument("--batches", type=int, metavar="N", help="time N batches only; report the seconds of an epoch")
    options = parser.parse_args()
    data = load_dataset(options.data)
    if options.batches:
        print(f"seconds per epoch: {time_epoch(data, seed=options.seed, batches=options.batches):.1f}")
        return
    seconds, epochs, reached = train(data, seed=options.seed, target=options.target / 100, every=options.every)
    print(f"test accuracy: {100 * reached:.2f} % after {epochs:.2f} epochs")
    print(f"training time: {seconds:.1f} s")


if __name__ == "__main__":
    main()
