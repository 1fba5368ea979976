# SPDX-License-Identifier: BSD-3-Clause
"""A GPT on bytes, the operations of a token, and the memory of a rank."""

from __future__ import annotations

import resource

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint

from training.language.options import Shape

VOCABULARY = 256  # a token is a byte


def local(weight: Tensor) -> Tensor:
    """Return the tensor itself of a weight that ranks have copies of; with --tensor it is a DTensor."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


class Norm(nn.LayerNorm):
    """A LayerNorm whose weights may be DTensors, and its input a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, local(self.weight), local(self.bias), self.eps)


class Attention(nn.Module):
    """Lets each byte look at the bytes before it: [n, length, width] to the same shape.

    The weights are in the order of the heads, so that a part of their rows is that of some heads: with --tensor, this
    rank's. The heads are computed outside DTensor, whose attention cannot be divided on CPUs.
    """

    def __init__(self, shape: Shape):
        super().__init__()
        self.head_width = shape.width // shape.heads
        self.projection = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.output = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        split = self.projection(x).view(*x.shape[:2], -1, 3, self.head_width)  # [n, length, heads, 3, head_width]
        query, key, value = split.permute(3, 0, 2, 1, 4)  # [n, heads, length, head_width] each
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(attended.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a network of two layers, each added to its normalised input."""

    def __init__(self, shape: Shape):
        super().__init__()
        width = shape.width
        self.attention_norm = Norm(width)
        self.attention = Attention(shape)
        self.network_norm = Norm(width)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.network(self.network_norm(x))


class GPT(nn.Module):
    """Predicts the next byte at each place: int64 [n, length] to scores [n, length, VOCABULARY].

    The embedding is also the output layer. There is no dropout: random masks differ between ranks, so the
    result would depend on their number. With ``recompute`` the blocks keep only their inputs, and the
    backward pass computes the rest again.
    """

    def __init__(self, shape: Shape, context: int, *, recompute: bool = False):
        super().__init__()
        self.shape = shape
        self.context = context
        self.recompute = recompute
        self.embedding = nn.Embedding(VOCABULARY, shape.width)
        self.places = nn.Embedding(context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.embedding(tokens, local(self.embedding.weight)) + local(self.places.weight)[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return F.linear(self.norm(x), local(self.embedding.weight))


def set_first_weights(network: GPT, seed: int) -> None:
    """Set the weights of GPT-2's first step, the same on any number of ranks.

    Each rank draws each parameter whole and keeps its part, so a rank never has the whole model. Standard
    deviation 0.02, divided by sqrt(2 layers) where a block adds to its input (section 2.3 of "Language
    Models are Unsupervised Multitask Learners", Radford et al. 2019, and OpenAI's code of GPT-2).
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in network.named_parameters():
        whole = torch.empty(parameter.shape)
        if parameter.dim() == 1:  # of a LayerNorm
            whole.fill_(1.0 if name.endswith("weight") else 0.0)
        else:
            is_added = name.endswith(("attention.output.weight", "network.2.weight"))
            deviation = 0.02
            if is_added:
                deviation /= (2 * network.shape.layers) ** 0.5
            whole.normal_(0, deviation, generator=generator)
        whole = whole.to(parameter.device)
        with torch.no_grad():
            parameter.copy_(distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None))


def count_parameters(network: GPT) -> int:
    """Return the number of parameters of the whole model."""
    return sum(parameter.numel() for parameter in network.parameters())


def operations_per_token(network: GPT) -> int:
    """Return the operations of training on a token: 6 N + 12 L d T, without those of --recompute.

    N are the weights without those of the places, L the blocks, d the width, T the context (PaLM, appendix B:
    https://arxiv.org/abs/2204.02311).
    """
    weights = count_parameters(network) - network.places.weight.numel()
    return 6 * weights + 12 * network.shape.layers * network.shape.width * network.context


def peak_memory(device: torch.device) -> int:
    """Return the most bytes that this rank has used so far: of its GPU, or of the host's memory."""
    if device.type == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # in KiB: getrusage(2)
    return torch.cuda.max_memory_allocated(device)
