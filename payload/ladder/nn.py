#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Train a minimal network on one node: tensors, a module, a loss, an optimizer, 10,000 steps.

Each sample has five numbers between 0 and 1; the network learns whether the sum of the first two is above 1. It needs
no data and no launcher, and runs on the GPU if there is one.
"""

import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the directory of training/
from training import TrainingError
from training.accelerator import find_accelerator
from training.distributed import select_device
from training.finite import check_loss
from training.options import OneLineParser, integer, number

FEATURES = 5


def parse_arguments():
    parser = OneLineParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--epochs", type=integer(1), default=10000, help="steps, each on all samples (default: %(default)s)")
    add("--samples", type=integer(1, 10**7), default=1000, help="number of training samples (default: %(default)s)")
    add("--hidden", type=integer(1, 10**6), default=10, help="width of the hidden layer (default: %(default)s)")
    add("--lr", type=number(), default=0.01, help="learning rate (default: %(default)s)")
    add("--seed", type=integer(0, 2**32 - 1), default=1, help="for samples and weights (default: %(default)s)")
    return parser.parse_args()


def draw_samples(count):
    """Return float32 features [count, FEATURES] and labels [count, 1], each 0.0 or 1.0."""
    features = torch.rand(count, FEATURES)
    return features, (features[:, :2].sum(dim=1, keepdim=True) > 1).float()


class SmallNetwork(nn.Module):
    """One hidden layer; returns scores [n, 1], above 0 for "more than 1"."""

    def __init__(self, hidden):
        super().__init__()
        self.hidden = nn.Linear(FEATURES, hidden)
        self.output = nn.Linear(hidden, 1)

    def forward(self, features):
        return self.output(torch.relu(self.hidden(features)))


def train(options):
    device = select_device(find_accelerator() is not None, local_rank=0)
    torch.manual_seed(options.seed)
    features, labels = (tensor.to(device) for tensor in draw_samples(options.samples))
    test_features, test_labels = (tensor.to(device) for tensor in draw_samples(10000))
    network = SmallNetwork(options.hidden).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=options.lr)

    for epoch in range(1, options.epochs + 1):
        # Computed from the scores: the sigmoid of a score can round to 0, which has no logarithm.
        loss = nn.functional.binary_cross_entropy_with_logits(network(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % max(options.epochs // 10, 1) == 0 or epoch == options.epochs:
            check_loss(loss.item(), f"epoch {epoch}")
            print(f"Epoch [{epoch}/{options.epochs}], Loss: {loss.item():.4f}", flush=True)

    with torch.no_grad():  # on samples that it was not trained on
        correct = ((network(test_features) > 0) == (test_labels > 0)).float().mean()
    print(f"Accuracy: {100 * correct.item():.2f}%")


if __name__ == "__main__":
    torch.set_num_threads(1)  # at this size, more threads are slower
    try:
        train(parse_arguments())
    except TrainingError as error:
        sys.exit(f"nn.py: {error}")
