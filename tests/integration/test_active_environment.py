"""Which Python ranks run: each command with each kind of active environment, in the image and with the venv module."""

import os
import shutil
import sys
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.testbed

#: Prints the environment and where torch would be imported from, without its import of 2 CPU seconds; in one write.
SHOW = (
    "import importlib.util as u, os, sys; words = ['RAN', sys.prefix, u.find_spec('torch').origin]; "
    "os.write(1, (' '.join(words) + chr(10)).encode())"
)


class Environment(NamedTuple):
    """How an environment becomes active, its name if it runs then (else the module's does), whether it has no torch."""

    setting: str
    runs: str = ""
    has_no_torch: bool = False


#: `v` and `u` see the module's torch, `conda` stands for one with its own.
ENVIRONMENTS = {
    "none": Environment(":"),
    "venv": Environment("source v/bin/activate", runs="v"),
    "uv": Environment("source u/bin/activate", runs="u"),
    "path": Environment("export PATH=$PWD/v/bin:$PATH", runs="v"),  # as LUMI's and CSCS's lines do
    "plain": Environment("source plain/bin/activate", has_no_torch=True),
    "base": Environment(
        "export PATH=$PWD/base/bin:$PATH CONDA_PREFIX=$PWD/base CONDA_DEFAULT_ENV=base", has_no_torch=True
    ),
    "conda": Environment(
        "export PATH=$PWD/conda/bin:$PATH CONDA_PREFIX=$PWD/conda CONDA_DEFAULT_ENV=own", runs="conda"
    ),
}
NO_TORCH = " is active and has no torch"
RANKS = "srun -N2 -n2 --export=ALL"
COMMANDS = {
    "conda-python-distributed": f'{RANKS} conda-python-distributed -c "$SHOW"',
    "torchrun-distributed": f"{RANKS} torchrun-distributed --nproc-per-node=1 show.py",
    "ddp-env": f"""{RANKS} %s bash -c 'source <(ddp-env) && exec python -c "$SHOW"'""",
    "conda-python-simple": 'conda-python-simple -c "$SHOW"',
    "torchrun": "torchrun --standalone --nproc-per-node=2 show.py",
}
IN_IMAGE = {
    "singularity exec": f'{RANKS} singularity exec $SIF conda-python-distributed -c "$SHOW"',
    "activated in the image": f"{RANKS} singularity exec $SIF bash -c "
    """'[ ! -e v/bin/activate ] || source v/bin/activate; exec conda-python-distributed -c "$SHOW"'""",
}


@pytest.fixture(params=["container", pytest.param("venv", marks=pytest.mark.thorough)])
def module(request):
    """The module's name, and what runs a shell where its ranks run."""
    name = request.getfixturevalue(request.param)
    return name, "singularity exec $SIF" if request.param == "container" else ""


def test_every_command_runs_the_active_environment(testbed, module, work, request):
    name, enter = module
    (work / "show.py").write_text(SHOW)
    prepare = f"""unset PYTORCH_LAUNCH_ACTIVE
    tests={sys.prefix}/bin PATH=:$PATH:
    PATH=${{PATH//:"$tests":/:}} PATH=${{PATH#:}} PATH=${{PATH%:}}
    module load {name}
    export SHOW={SHOW!r}
    python -m venv --without-pip --system-site-packages v
    python -m venv --without-pip plain
    cp {shutil.which("uv") or pytest.skip("no uv: ./run-tests installs it")} uv
    {enter} ./uv --no-cache venv -q --system-site-packages u
    mkdir -p {{conda,base}}/{{conda-meta,bin}} conda/lib/python3.11/site-packages/torch base/condabin
    printf '#!/bin/sh\\necho RAN conda conda\\n' | tee conda/bin/python >base/bin/python
    chmod +x conda/bin/python base/bin/python"""
    output = testbed.run("\n".join([prepare, *lines(enter, request)]), cwd=work)
    cells = {}
    for part in f"\n{output}".split("\n## ")[1:]:
        heading, _, text = part.partition("\n")
        cells[tuple(heading.split(" ## "))] = text
    modules = where(cells["none", "conda-python-distributed"])
    assert modules[1].endswith("/torch/__init__.py")
    faults = [(cell, text) for cell, text in cells.items() if not is_right(cell, text, modules, work)]
    assert not faults, faults


def lines(enter, request):
    """The lines that run each command in each environment, with a heading each; `enter` enters the image."""
    commands = {**COMMANDS, **(IN_IMAGE if enter else {})}
    # each agent imports torch; that of "conda" is a stand-in, which starts no workers
    with_torchrun = ENVIRONMENTS.keys() - {"conda"} if request.config.getoption("--thorough") else {"venv"}
    found = []
    for active, environment in ENVIRONMENTS.items():
        for command, line in commands.items():
            is_left_out = command == "activated in the image" and active != "none"
            if not is_left_out and (active in with_torchrun or not command.startswith("torchrun")):
                line = line.replace("%s", enter)
                found.append(f"echo '## {active} ## {command}'; ({environment.setting}; {line}) 2>&1 || true")
    return found


def is_right(cell, text, modules, work):
    """Whether a command ran the Python that it should in an environment, or none, with the message."""
    active, command = cell
    ran = [where(line) for line in text.splitlines() if "RAN " in line]
    if active == "plain":
        return ran == [] and f"{NO_TORCH}. Run `deactivate`" in text
    runs = "v" if command == "activated in the image" else ENVIRONMENTS[active].runs
    expected = list(modules)
    if runs == "conda":
        expected = ["conda", "conda"]
    elif runs:
        expected[0] = str(work / runs)
    ranks = 1 if command == "conda-python-simple" else 2
    is_told = f"{NO_TORCH}: using the module's" in text
    return ran == [expected] * ranks and is_told == ENVIRONMENTS[active].has_no_torch


def where(line):
    """Return environment and torch of a line of SHOW. The base of a Debian Python has a link to site-packages."""
    prefix, torch = line.split("RAN ")[1].split()[:2]
    return [prefix, torch if torch == "conda" else os.path.realpath(torch)]
