"""Trains a linear model with the Trainer of transformers, as docs/frameworks.md shows."""

import os
import time

import torch
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    """One linear layer, which returns its loss like the models of transformers."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, inputs, labels):
        """Return loss and outputs."""
        outputs = self.layer(inputs)
        return {"loss": torch.nn.functional.mse_loss(outputs, labels), "logits": outputs}


if __name__ == "__main__":
    torch.manual_seed(1)
    inputs = torch.randn(64, 8)
    samples = [{"inputs": each, "labels": each.sum(0, keepdim=True)} for each in inputs]
    arguments = TrainingArguments(
        "output",
        use_cpu=not torch.cuda.is_available(),
        num_train_epochs=1,
        per_device_train_batch_size=4,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    model = Model()
    steps = Trainer(model, arguments, train_dataset=samples).train().global_step
    place = f"rank {arguments.process_index} of {arguments.world_size}"
    os.write(1, f"{place}, weights {model.layer.weight.sum():.5f}, {steps} batches\n".encode())
    time.sleep(0.1)  # docs/troubleshooting.md: with gloo, a process that ends at once may abort
