"""A GPT on bytes: the shapes behind --size, the network, and its first weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint

VOCABULARY = 256  # a token is a byte
HEAD_WIDTH = 64


class Shape(NamedTuple):
    """The number of blocks of a model, and its width: a multiple of HEAD_WIDTH."""

    layers: int
    width: int


#: A block has 12 * width^2 weights, so these have about as many parameters as their names tell.
SHAPES = {
    "100K": Shape(2, 64), "1M": Shape(5, 128), "10M": Shape(8, 320), "124M": Shape(10, 1024),
    "350M": Shape(28, 1024), "1B": Shape(20, 2048),
}  # fmt: skip


class Attention(nn.Module):
    """Lets each byte look at the bytes before it: [n, length, width] to the same shape."""

    def __init__(self, width: int):
        super().__init__()
        self.heads = width // HEAD_WIDTH
        self.inputs = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        split = (*x.shape[:2], 3, self.heads, HEAD_WIDTH)
        query, key, value = self.inputs(x).view(split).permute(2, 0, 3, 1, 4)  # [n, heads, length, HEAD_WIDTH] each
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(attended.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    """Attention and a network of two layers, each added to its normalised input."""

    def __init__(self, width: int):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.network_norm = nn.LayerNorm(width)
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
        self.blocks = nn.ModuleList(Block(shape.width) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return F.linear(self.norm(x), self.embedding.weight)


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
            deviation = 0.02 / (2 * network.shape.layers) ** 0.5 if is_added else 0.02
            whole.normal_(0, deviation, generator=generator)
        if isinstance(parameter, DTensor):
            whole = distribute_tensor(
                whole.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
            )
        with torch.no_grad():
            parameter.copy_(whole)
