"""Builds what the doctor checks: the directory of a module, its Python's answers, a node with files."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from programs import program
from pytorch_doctor.context import Context, Outcome

RECIPE = """name = 'PyTorch'
version = '2.13.0'
toolchain = SYSTEM
gpu = {gpu!r}
"""
FACTS = {"cuda": None, "hip": None, "devices": [], "fault": None, "plugin": None}


@pytest.fixture
def installation(tmp_path):
    """A function that makes the directory of a module, and returns the variables that it sets."""

    def make(gpu=None):
        root = tmp_path / "PyTorch"
        for part in ("runscripts", "payload", "bin", "easybuild", "provenance"):
            (root / part).mkdir(parents=True)
        (root / "easybuild" / "PyTorch-2.13.0.eb").write_text(RECIPE.format(gpu=gpu))
        places = {"RUNSCRIPTS": f"{root}/runscripts", "PAYLOAD": f"{root}/payload", "PATH": f"{root}/bin:/usr/bin:/bin"}
        roots = dict.fromkeys(("EBROOTPYTORCH", "CONTAINERROOT"), str(root))
        return {**roots, **places, "LOADEDMODULES": "cluster/lumi:PyTorch/2.13.0-cpu"}

    return make


@pytest.fixture
def python(installation):
    """A function that makes a module whose Python answers with the given facts about torch, or fails."""

    def make(facts=None, error="", **changes):
        env = dict(installation(), SIFPYTORCH="/x.sif")
        known = {"python": "/usr/bin/python3", "version": "2.13.0+cpu", "directory": "/opt/torch"}
        known.update(FACTS, in_image=True, prefix=None, total=8.0)
        answer = json.dumps({**known, **facts}) if facts is not None else ""
        script = f"echo noise\ncat <<'E'\n{answer}\nE\necho '{error}' >&2\nexit {int(facts is None)}"
        program(Path(env["EBROOTPYTORCH"], "bin", "conda-python-simple"), script)
        return Context({**env, **changes})

    return make


# The command


@pytest.fixture
def doctor(runscripts, tmp_path):
    """Run the command, or a script in which it is `$0`, with nothing in its environment but what is given."""

    def run(*arguments, script='"$0" "$@"', **env):
        env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(tmp_path), **env}
        command = ["bash", "-c", script, runscripts / "pytorch-doctor", *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)

    return run


@pytest.fixture
def at(tmp_path):
    """A function that makes the context of a module for GPUs on a node, with what torch reports there."""

    def make(node, gpu, facts=None, **env):
        easybuild = tmp_path / "module" / "easybuild"
        easybuild.mkdir(parents=True, exist_ok=True)
        (easybuild / "PyTorch.eb").write_text(f"gpu = {gpu!r}\n")
        here = Context({"EBROOTPYTORCH": str(easybuild.parent), **env}, root=str(node))
        here._torch = ({**FACTS, **facts} if facts is not None else None), Outcome(0, "", "")
        return here

    return make


@pytest.fixture
def with_files(tmp_path):
    """A function that copies a node's tree and adds files to it, path to text."""

    def make(files, node=None):
        copy = tmp_path / "node"
        if node:
            # its CPUs are thousands of files, and not needed here
            shutil.copytree(node, copy, ignore=lambda place, _: ["cpu"] if place.endswith("devices/system") else [])
        for path, text in files.items():
            file = copy / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return copy

    return make
