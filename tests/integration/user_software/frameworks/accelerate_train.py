"""Trains a linear model with accelerate, as the section "accelerate" of docs/frameworks.md shows."""

import os
import time

import torch
from accelerate import Accelerator

if __name__ == "__main__":
    torch.manual_seed(1)
    inputs = torch.randn(64, 8)
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True)), 4)
    model = torch.nn.Linear(8, 1)
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    model, optimizer, batches = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), batches)
    for features, targets in batches:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(features), targets))
        optimizer.step()
    place = f"rank {accelerator.process_index} of {accelerator.num_processes}"
    weights = accelerator.unwrap_model(model).weight.sum()
    os.write(1, f"{place}, weights {weights:.5f}, {len(batches)} batches\n".encode())
    accelerator.end_training()
    time.sleep(0.1)  # docs/troubleshooting.md: with gloo, a process that ends at once may abort
