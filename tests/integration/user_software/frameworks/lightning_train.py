"""Trains a linear model with Lightning, as the section "Lightning" of docs/frameworks.md shows."""

import os
import time

import lightning as L
import torch


class Model(L.LightningModule):
    """One linear layer."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch):
        """Return the loss of a batch."""
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layer(inputs), targets)

    def configure_optimizers(self):
        """Return the optimiser."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    torch.manual_seed(1)
    inputs = torch.randn(64, 8)
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True)), 4)
    model = Model()
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    nodes = int(os.environ["WORLD_SIZE"]) // local
    trainer = L.Trainer(
        devices=local,
        num_nodes=nodes,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        accelerator="cpu",
    )
    trainer.fit(model, batches)
    place = f"rank {trainer.global_rank} of {trainer.world_size}"
    os.write(1, f"{place}, weights {model.layer.weight.sum():.5f}, {trainer.global_step} batches\n".encode())
    time.sleep(0.1)  # docs/troubleshooting.md: with gloo, a process that ends at once may abort
