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

torch.set_num_threads(1)  # at this size, more threads are slower
torch.manual_seed(1)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # AMD's GPUs are "cuda" too


def draw_samples(count):
    """Return float32 features [count, FEATURES] and labels [count, 1], each 0.0 or 1.0, on the device."""
    features = torch.rand(count, FEATURES).to(device)
    return features, (features[:, :2].sum(dim=1, keepdim=True) > 1).float()


features, labels = draw_samples(1000)
network = nn.Sequential(nn.Linear(FEATURES, 10), nn.ReLU(), nn.Linear(10, 1)).to(device)
optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

for epoch in range(1, EPOCHS + 1):
    # Computed from the scores: the sigmoid of a score can round to 0, which has no logarithm
    loss = nn.functional.binary_cross_entropy_with_logits(network(features), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 1000 == 0:
        print(f"Epoch [{epoch}/{EPOCHS}], Loss: {loss.item():.4f}", flush=True)

features, labels = draw_samples(10000)  # on samples that it was not trained on
correct = ((network(features) > 0) == (labels > 0)).float().mean()
print(f"Accuracy: {100 * correct.item():.2f}%")
