"""Small runs for the tests of checkpoints: tables of optimizers, schedules and networks; and weights of trainings."""

from functools import partial
from typing import Any, Callable, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import lr_scheduler
from training.checkpoint import Run

ADAM = partial(torch.optim.Adam, lr=0.1)


class Case(NamedTuple):
    """What makes an optimizer of parameters, a schedule of an optimizer, or a network."""

    name: str
    make: Callable[..., Any]


def optimizer(kind, name="", **options):
    """An optimizer of torch, whose name here may tell its options."""
    return Case(name or kind, partial(getattr(torch.optim, kind), lr=0.1, **options))


def schedule(kind, **options):
    """A schedule of torch."""
    return Case(kind, partial(getattr(lr_scheduler, kind), **options))


def muon(parameters):
    """An optimizer of weights with two dimensions only."""
    return torch.optim.Muon([each for each in parameters if each.dim() == 2], lr=0.1)


def two_groups(parameters):
    weights, *others = parameters
    return torch.optim.AdamW([{"params": [weights], "weight_decay": 0.1}, {"params": others, "name": "others"}], lr=0.1)


def with_tensor_rate(parameters):
    return torch.optim.Adam(parameters, lr=torch.tensor(0.1))


OPTIMIZERS = [
    optimizer("Adadelta"),
    optimizer("Adagrad"),
    optimizer("Adam"),
    optimizer("Adam", "Adam amsgrad", amsgrad=True, maximize=True),
    optimizer("Adam", "Adam foreach", foreach=True),
    optimizer("Adam", "Adam fused", fused=True),
    Case("Adam with a tensor as rate", with_tensor_rate),
    optimizer("AdamW"),
    Case("AdamW of two groups", two_groups),
    optimizer("Adamax"),
    optimizer("ASGD", t0=2),
    optimizer("LBFGS", max_iter=3),
    optimizer("LBFGS", "LBFGS wolfe", max_iter=3, line_search_fn="strong_wolfe"),
    optimizer("NAdam"),
    optimizer("RAdam"),
    optimizer("RMSprop"),
    optimizer("RMSprop", "RMSprop centered", centered=True, momentum=0.5),
    optimizer("Rprop"),
    optimizer("SGD"),
    optimizer("SGD", "SGD nesterov", momentum=0.9, nesterov=True),
]
if hasattr(torch.optim, "Adafactor"):  # since torch 2.5
    OPTIMIZERS.append(optimizer("Adafactor"))
if hasattr(torch.optim, "Muon"):  # since torch 2.9
    OPTIMIZERS.append(Case("Muon", muon))


class Decay:
    """A factor of the learning rate with a state."""

    def __init__(self):
        self.calls = 0

    def __call__(self, _step):
        self.calls += 1
        return 0.9**self.calls


def sequence(optimizer):
    parts = [lr_scheduler.LinearLR(optimizer), lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[4])


def chain(optimizer):
    return lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    )


SCHEDULES = [
    Case("none", lambda _optimizer: None),
    schedule("LambdaLR", lr_lambda=lambda step: 0.9**step),
    Case("LambdaLR with a state", lambda optimizer: lr_scheduler.LambdaLR(optimizer, Decay())),
    schedule("MultiplicativeLR", lr_lambda=lambda _step: 0.9),
    schedule("StepLR", step_size=2, gamma=0.5),
    schedule("MultiStepLR", milestones=[2, 5, 5]),
    schedule("ConstantLR", total_iters=4),
    schedule("LinearLR"),
    schedule("ExponentialLR", gamma=0.9),
    schedule("PolynomialLR", total_iters=8),
    schedule("CosineAnnealingLR", T_max=10),
    schedule("CosineAnnealingWarmRestarts", T_0=4),
    schedule("CyclicLR", base_lr=0.01, max_lr=0.1, step_size_up=3, cycle_momentum=False),
    schedule("OneCycleLR", max_lr=0.1, total_steps=20),
    schedule("ReduceLROnPlateau", patience=1),
    Case("SequentialLR", sequence),
    Case("ChainedScheduler", chain),
    Case("SWALR", lambda optimizer: torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05)),
]


def plain():
    """A network with random masks, whose steps depend on the random state."""
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))


class Net(nn.Module):
    """A network for the tests to change."""

    def __init__(self, hidden=8, **modules):
        super().__init__()
        self.first = nn.Linear(4, hidden)
        self.last = nn.Linear(hidden, 2)
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, inputs):
        return self.last(self.first(inputs).tanh())


class Module(nn.Module):
    """A network whose only child is called `module`."""

    def __init__(self):
        super().__init__()
        self.module = plain()

    def forward(self, inputs):
        return self.module(inputs)


class ExtraState(Net):
    """A network that counts its calls in an extra state, and computes with the number."""

    def __init__(self):
        super().__init__()
        self.extra = {"calls": 0, "scale": torch.ones(2)}

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state

    def forward(self, inputs):
        self.extra = {"calls": self.extra["calls"] + 1, "scale": self.extra["scale"] * 0.9}
        return super().forward(inputs) * self.extra["scale"] / self.extra["calls"]


class Masked(Net):
    """A network with a buffer of a causal mask, one that is not saved, and none."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
        self.register_buffer("rest", torch.ones(2), persistent=False)
        self.register_buffer("nothing", None)

    def forward(self, inputs):
        return super().forward(inputs) @ self.mask.softmax(dim=1) * self.rest


def tied():
    network = Net(hidden=4)
    network.last = nn.Linear(4, 4)
    network.last.weight = network.first.weight
    return network


def frozen():
    network = Net()
    network.first.requires_grad_(False)
    return network


def compiled_part():
    network = Net()
    network.first = compiled(network.first)
    return network


def compiled(network):
    return torch.compile(network, backend="eager")


class Images(nn.Module):
    """A network of convolutions with the channels last."""

    def __init__(self):
        super().__init__()
        layers = nn.Sequential(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 2))
        self.layers = layers.to(memory_format=torch.channels_last)

    def forward(self, inputs):
        return self.layers(inputs.view(-1, 1, 2, 2))


class Words(nn.Module):
    """An embedding, an LSTM and attention."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 4)
        self.memory = nn.LSTM(4, 4, batch_first=True)
        self.attention = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)

    def forward(self, inputs):
        words = self.words((inputs * 3).long().clamp(0, 9))
        return self.attention(self.memory(words)[0])


class Odd(nn.Module):
    """Parameters of unusual types and shapes."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.doubles = nn.ParameterList([nn.Parameter(torch.ones(4, 2, dtype=torch.float64))])
        self.turn = nn.ParameterDict({"turn": nn.Parameter(torch.ones(2, dtype=torch.complex64))})

    def forward(self, inputs):
        return ((inputs.double() @ self.doubles[0]) * self.scale * self.turn["turn"]).abs()


NETWORKS = [
    Case("plain", plain),
    Case("in DistributedDataParallel", lambda: DistributedDataParallel(plain())),
    Case("in DataParallel", lambda: DataParallel(plain())),
    Case("compiled", lambda: compiled(plain())),
    Case("compiled, in DistributedDataParallel", lambda: DistributedDataParallel(compiled(plain()))),
    Case("in DistributedDataParallel, compiled", lambda: compiled(DistributedDataParallel(plain()))),
    Case("with a compiled part", compiled_part),
    Case("with an only child called module", Module),
    Case("tied", tied),
    Case("frozen", frozen),
    Case("bf16", lambda: plain().bfloat16()),
    Case("masked", Masked),
    Case("extra state", ExtraState),
    Case("convolutions", Images),
    Case("words", Words),
    Case("spectral norm", lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 2))),
    Case("old spectral norm", lambda: nn.utils.spectral_norm(nn.Linear(4, 2))),
    Case("odd parameters", Odd),
]


def small_run(world, optimizer=ADAM, schedule=SCHEDULES[4].make, network=plain, **options):
    """A network with what trains it; options are Run's, and settings of the run."""
    torch.manual_seed(1)
    network = network()
    optimizer = optimizer([each for each in network.parameters() if each.requires_grad])
    own = {name: options.pop(name) for name in ("extra", "best", "limits", "data") if name in options}
    return Run(network, optimizer, schedule(optimizer), {"epochs": 3, **options}, world, **own)


def take_steps(run, count):
    """Train on numbers of a step that are the same in each run."""
    dtype = next(run.network.parameters()).dtype
    for _ in range(count):
        numbers = torch.Generator().manual_seed(run.position.step)
        inputs = torch.randn(16, 4, generator=numbers).to(dtype if dtype == torch.bfloat16 else torch.float32)

        def closure(inputs=inputs):
            run.optimizer.zero_grad()
            loss = run.network(inputs).square().mean()
            loss.backward()
            return loss

        loss = run.optimizer.step(closure)
        if isinstance(run.schedule, lr_scheduler.ReduceLROnPlateau):
            run.schedule.step(loss.item())
        elif run.schedule:
            run.schedule.step()
        run.position.step += 1


def assert_continues(make, checkpoints, steps=3):
    """A run that `make` makes, saved after some steps, goes on in fresh objects as if it had not stopped."""
    through = make()
    through.resume(checkpoints)
    take_steps(through, steps)
    through.save(checkpoints)
    take_steps(through, 6)
    resumed = make()
    assert resumed.resume(checkpoints)
    take_steps(resumed, 6)
    assert equal(resumed.network.state_dict(), through.network.state_dict())
    rates = [[group["lr"] for group in run.optimizer.param_groups] for run in (resumed, through)]
    assert rates[0] == rates[1]
    assert resumed.position == through.position
    return through, resumed


def change_file(path, change):
    """Change the state in a checkpoint."""
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, path)


def weights(directory):
    """The weights that a training wrote to a directory."""
    return torch.load(directory / "mnist_ddp.pt", weights_only=True)


def equal(one, other):
    """Whether two states are the same, bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def flip_bit(path, place):
    """Flip a bit of the byte at a place in a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << place % 8
    path.write_bytes(content)
