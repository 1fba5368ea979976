#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Train a minimal network in one process: tensors, a module, a loss, an optimizer, 10,000 steps.

Each sample has five numbers between 0 and 1; the network learns whether the sum of the first two is above 1. It needs
no data and no launcher, and runs on the GPU if there is one.
"""

import torch
from torch import nn

FEATURES = 5
EPOCHS = 10000  # an epoch is one step on all samples


def draw_samples(count):
    """Return float32 features [count, FEATURES] and labels [count, 1], each 0.0 or 1.0."""
    features = torch.rand(count, FEATURES)
    return features, (features[:, :2].sum(dim=1, keepdim=True) > 1).float()


def build_network():
    """Return a network of one hidden layer; its scores [n, 1] are above 0 for "more than 1"."""
    return nn.Sequential(nn.Linear(FEATURES, 10), nn.ReLU(), nn.Linear(10, 1))


def train():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # AMD's GPUs are "cuda" too
    torch.manual_seed(1)
    features, labels = (tensor.to(device) for tensor in draw_samples(1000))
    test_features, test_labels = (tensor.to(device) for tensor in draw_samples(10000))
    network = build_network().to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    for epoch in range(1, EPOCHS + 1):
        # Computed from the scores: the sigmoid of a score can round to 0, which has no logarithm
        loss = nn.functional.binary_cross_entropy_with_logits(network(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 1000 == 0:
            print(f"Epoch [{epoch}/{EPOCHS}], Loss: {loss.item():.4f}", flush=True)

    with torch.no_grad():  # on samples that it was not trained on
        correct = ((network(test_features) > 0) == (test_labels > 0)).float().mean()
    print(f"Accuracy: {100 * correct.item():.2f}%")


if __name__ == "__main__":
    torch.set_num_threads(1)  # at this size, more threads are slower
    train()
