#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Train a small network on MNIST with Horovod on any number of ranks, each on a GPU if there is one.

mpirun or srun starts it once per rank: MPI provides the ranks. Data, model and loops are those of mnist_single.py
beside it; mnist_multi.py does the same with PyTorch alone.
"""

import sys

import torch
from mnist_single import build_model, evaluate, load_mnist, parse_arguments, train_epoch
from torch.utils.data import DataLoader, DistributedSampler

try:
    import horovod.torch as hvd
except ImportError as error:
    sys.exit(f"mnist_horovod.py: {error}. Load a module that has Horovod (`module spider horovod`)")


def train(options):
    """Train and validate."""
    rank = hvd.rank()
    size = hvd.size()
    device = torch.device("cpu")
    if torch.cuda.is_available():  # AMD's GPUs are "cuda" too
        device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)
    data = options.data or "generated digits"
    if rank == 0:  # one rank prints
        print(f"world size {size}, Horovod, device {device}, torch {torch.__version__}, data {data}")
    if options.batch_size % size:
        sys.exit(f"--batch-size {options.batch_size}: not a multiple of {size} ranks. Use another one")

    train_set = load_mnist(options.data, "train", 6000)
    test_set = load_mnist(options.data, "t10k", 1000)
    order = DistributedSampler(train_set, size, rank)
    train_loader = DataLoader(train_set, options.batch_size // size, sampler=order)
    test_loader = DataLoader(test_set, 1000, sampler=range(rank, len(test_set), size))

    torch.manual_seed(0)
    model = build_model().to(device)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # DistributedDataParallel does this itself
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())  # step() averages the ranks' gradients
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(train_loader))

    for epoch in range(1, options.epochs + 1):
        order.set_epoch(epoch)
        loss = train_epoch(model, train_loader, optimizer, schedule, device)
        loss = hvd.allreduce(torch.tensor(loss)).item()  # the mean over the ranks
        share = evaluate(model, test_loader, device)  # correct images of this rank, in per cent of all
        accuracy = hvd.allreduce(torch.tensor(share), op=hvd.Sum).item()
        if rank == 0:
            print(f"epoch {epoch}/{options.epochs}  loss {loss:.4f}  test accuracy {accuracy:.2f} %", flush=True)
    if rank == 0:
        print(f"test accuracy: {accuracy:.2f} %")


if __name__ == "__main__":
    hvd.init()
    options = parse_arguments(__doc__.splitlines()[0])
    if options.modelpath:
        sys.exit("mnist_horovod.py: --modelpath: it writes no checkpoints. Use mnist_multi.py")
    train(options)
