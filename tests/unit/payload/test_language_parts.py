"""The parts of the language model: the order of its windows, its text, its arithmetic."""

import argparse
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from training import TrainingError
from training.language.model import GPT, Attention, count_parameters, operations_per_token
from training.language.options import SHAPES, Shape
from training.language.text import open_text, source_files, window_at


@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 1000])
def test_a_pass_takes_each_window_once_in_an_order_of_its_own(count):
    passes = [[window_at(number * count + place, count, 5) for place in range(count)] for number in range(2)]
    assert all(sorted(order) == list(range(count)) for order in passes)
    assert count < 16 or (passes[0] != passes[1] != list(range(count)))


@pytest.mark.slow
def test_the_sizes_have_about_as_many_parameters_as_their_names_tell():
    for name, shape in SHAPES.items():
        with torch.device("meta"):
            network = GPT(shape, 1024 if shape.width > 128 else 128)
        named = float(name[:-1]) * {"K": 1e3, "M": 1e6, "B": 1e9}[name[-1]]
        assert count_parameters(network) == pytest.approx(named, rel=0.25)


def test_the_operations_of_a_token_are_those_that_torch_counts():
    network = GPT(Shape(3, 128, 4), 64)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # torch counts no fused one on CPUs
        network(torch.zeros(1, 64, dtype=torch.long)).sum().backward()
    norms = sum(weight.numel() for weight in network.parameters() if weight.dim() == 1)  # not counted by torch
    assert 64 * (operations_per_token(network) - 6 * norms) == pytest.approx(counter.get_total_flops(), rel=0.001)


def test_attention_is_the_softmax_of_the_textbook_over_each_byte_and_those_before_it():
    torch.manual_seed(0)
    attention = Attention(Shape(1, 128, 4))
    x = torch.randn(2, 5, 128)
    heads = attention.projection(x).view(2, 5, 4, 96).transpose(1, 2)  # four heads of 32
    query, key, value = heads.split(32, dim=-1)
    scores = (query @ key.transpose(-2, -1) / 32**0.5).masked_fill(torch.ones(5, 5).triu(1) == 1, float("-inf"))
    expected = attention.output((scores.softmax(dim=-1) @ value).transpose(1, 2).reshape(2, 5, 128))
    torch.testing.assert_close(attention(x), expected)


def test_the_standard_library_is_a_text(monkeypatch, tmp_path):
    assert Path(argparse.__file__) in source_files()
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
    with pytest.raises(TrainingError, match=f"^{tmp_path}: no source of Python. Name a text with --data$"):
        source_files()


def test_a_text_that_is_too_short_or_cannot_be_read_is_one_sentence(tmp_path, alone):
    (tmp_path / "text").write_text("short")
    with pytest.raises(TrainingError, match="5 bytes, at least 660 are needed for --context 32"):
        open_text(tmp_path / "text", 32, alone)
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(TrainingError, match=f"^{path}: cannot be read on "):
            open_text(path, 32, alone)
