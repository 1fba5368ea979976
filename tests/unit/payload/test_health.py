"""--health: the slowest rank is named, from times that no rank spends waiting, at no cost for the device."""

import re
from types import SimpleNamespace

import pytest
import torch
from launching import run_code
from torch import nn
from training import health
from training.distributed import World
from training.health import Health
from training.metrics import read_epochs

SLOW_RANK = """
import mnist_ddp
from shared_clock import SharedClock
from training import health
from training.data import device_batches
clock = health.time = SharedClock({directory!r})
if os.environ["RANK"] == "1":
    def late(*arguments):
        for step, batch in enumerate(device_batches(*arguments)):
            if step >= health.UNTIMED:
                clock.pass_time(0.1, ahead=3)  # the others are in the backward pass
            yield batch
    mnist_ddp.device_batches = late
mnist_ddp.run_training(mnist_ddp.train, mnist_ddp.parse_arguments({arguments!r}))
"""
REPORT = re.compile(r"^(.*)  slowest rank (\d) \((\S+)\): (\S+) ms alone per step, (\S+) times the median$", re.M)


@pytest.mark.slow
def test_a_rank_that_reads_slowly_is_named_after_the_epoch_and_in_the_metrics(small_mnist, tmp_path):
    line = ["--data", small_mnist, "--epochs", 1, "--batch-size", 8, "--health", "--modelpath", tmp_path / "run"]
    ranks = run_code(3, SLOW_RANK.format(arguments=list(map(str, line)), directory=str(tmp_path)))
    assert [rank.stdout for rank in ranks[1:]] == ["", ""]
    ((name, rank, host, ms, ratio),) = REPORT.findall(ranks[0].stdout)
    # the others wait for it as long, in the backward pass
    assert (name, rank) == ("epoch 1/1", "1") and float(ms) >= 100 and float(ratio) >= 3
    (values,) = read_epochs(tmp_path / "run" / "metrics.jsonl")
    assert values["slowest_rank"] == 1 and values["slowest_place"] == host
    assert values["slowest_seconds_alone"] >= 0.1 > 3 * values["step_seconds_alone"]


SHARDED = """
from shared_clock import SharedClock
from torch import nn
from torch.distributed.fsdp import fully_shard
from training import health
clock = health.time = SharedClock({directory!r})

class Block(nn.Linear):
    def forward(self, inputs):
        if os.environ["RANK"] == "1" and told.begun > health.UNTIMED:
            clock.pass_time(0.1, ahead=1)  # the other waits for the next weights
        return super().forward(inputs)

with process_group(os.environ, use_gpu=False, timeout=600) as world:
    model = nn.Sequential(Block(4, 4), Block(4, 4))
    told = health.Health(world, print)
    told.watch(model[0])
    for block in model:
        fully_shard(block)
    fully_shard(model)
    told.watch(model[1])  # before or after fully_shard: the order does not matter
    for batch in told.batches([torch.ones(1, 4)] * 5):
        model(batch).sum().backward()
    told.end_epoch("epoch 1/1")
"""


@pytest.mark.slow
def test_with_shards_the_wait_for_a_slow_ranks_weights_is_not_time_alone(tmp_path):
    ranks = run_code(2, SHARDED.format(directory=str(tmp_path)))
    ((_, rank, _, ms, ratio),) = REPORT.findall(ranks[0].stdout)
    assert rank == "1" and float(ms) >= 200 and float(ratio) >= 4


class Event:
    """An event of a device that runs behind; only a report waits for it."""

    recorded = 0
    may_wait = False

    def __init__(self, *, enable_timing):
        assert enable_timing

    def record(self):
        Event.recorded += 1
        self.number = Event.recorded

    def elapsed_time(self, last):
        return 2.0 * (last.number - self.number)

    def synchronize(self):
        assert Event.may_wait


@pytest.fixture
def gpu(monkeypatch, alone):
    """A world of one rank on a GPU, which is replaced at its outermost edge."""
    Event.recorded = 0
    Event.may_wait = False
    properties = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x41, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    monkeypatch.setattr(health.platform, "node", lambda: "n1")
    return World(0, 1, torch.device("cuda", 1), alone.host_group)


def take_steps(told, model, count):
    for _ in told.batches(range(count)):
        model(torch.ones(1, 2)).sum().backward()


def test_on_a_gpu_each_step_has_events_which_are_waited_for_after_the_epoch_alone(gpu):
    lines = []
    told = Health(gpu, lines.append)
    model = nn.Linear(2, 2)
    told.watch(model)
    take_steps(told, model, 2)
    told.end_epoch("epoch 1/2")
    take_steps(told, model, 2)
    Event.may_wait = True
    values = told.end_epoch("epoch 2/2")
    assert lines == [
        "epoch 2/2  slowest rank 0 (n1, GPU 1 at 0000:41:00.0): 4.00 ms alone per step, 1.00 times the median",
    ]
    assert values["slowest_place"] == "n1, GPU 1 at 0000:41:00.0" and values["step_seconds_alone"] == 0.004
    take_steps(told, model, health.MOST_TIMED + 9)
    assert len(told.timed) == health.MOST_TIMED  # an epoch of any length keeps so many events


def test_an_evaluation_and_the_first_two_steps_are_not_timed(monkeypatch, alone):
    now = [0.0]
    monkeypatch.setattr(health.time, "perf_counter", lambda: now[0])

    class Slow(nn.Module):
        def forward(self, seconds):
            now[0] += seconds
            return seconds

    told = Health(alone, print)
    model = Slow()
    told.watch(model)
    for seconds in told.batches([9.0, 9.0, 0.25, 0.75]):
        model(seconds)
        now[0] += 5  # the backward pass
        with torch.no_grad():
            model(7.0)
    assert told.end_epoch("")["step_seconds_alone"] == 0.5
