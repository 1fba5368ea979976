# SPDX-License-Identifier: BSD-3-Clause
"""What the doctor checks: loaded module, host or image, login node or job; and the facts about torch."""

import json
import re
import shutil
from collections import namedtuple
from pathlib import Path

from pytorch_command import run
from pytorch_launch import names, read
from pytorch_launch.container import ENGINE_IMAGE, in_container
from pytorch_launch.launchers import in_job

from pytorch_doctor.probe import PROBE

#: The variables that name the image of a module; one for venvs has none.
IMAGES = ("SIFPYTORCH", ENGINE_IMAGE, "SHIFTER_IMAGE")

Outcome = namedtuple("Outcome", "status output error")


class Context:
    """The environment `env`, and the files below `root`, which is "" except in tests.

    `module` is the directory of the loaded PyTorch module, None without one.
    """

    def __init__(self, env, root=""):
        self.env = dict(env)
        self.root = root
        self.module = Path(self.env["EBROOTPYTORCH"]) if self.env.get("EBROOTPYTORCH") else None
        self.in_image = in_container(self.env)
        self._torch = None

    # Properties, so that checks read the installation: its file system may hang, and checks have a deadline.
    @property
    def recipe(self):
        return read_recipe(self.module) if self.module else {}

    @property
    def is_venv(self):
        """Whether the module has no image; one that a user of Shifter names is not the module's."""
        return self.recipe.get("easyblock") == "EB_PyTorchVenv" or not any(map(self.env.get, IMAGES))

    def record(self, name):
        """A file of the installation's records, as a dict; empty without one."""
        try:
            return dict(json.loads((self.module / "provenance" / name).read_text()))
        except (OSError, ValueError, TypeError):
            return {}

    @property
    def trains_here(self):
        """Whether trainings run on this machine: in a job, or on a machine without Slurm and PBS.

        False in an image outside a job, as images may lack their commands.
        """
        return in_job(self.env) or not (self.in_image or self.which("sbatch") or self.which("qsub"))

    @property
    def gpu(self):
        """The kind of GPU that the loaded module is for: "cuda", "rocm" or None."""
        return self.recipe.get("gpu")

    @property
    def torch(self):
        """The facts about torch that `probe` prints, or None; and the Outcome of the probe, which runs once."""
        if self._torch is None:
            # with the user's paths; on the host the commands in the module's bin/ enter the image
            place = self.module / "bin"
            if self.in_image or self.is_venv:
                place = Path(__file__).absolute().parents[1]
            command = [str(place / "conda-python-simple"), "-c", PROBE]
            outcome = self.run(command, PYTORCH_LAUNCH_KEEP_PATHS="1")
            lines = [line for line in outcome.output.splitlines() if line.startswith("{")]
            facts = json.loads(lines[-1]) if outcome.status == 0 and lines else None
            self._torch = facts, outcome
        return self._torch

    def which(self, command):
        return shutil.which(command, path=self.env.get("PATH", ""))

    def run(self, command, **variables):
        """Run a command to its end, within the deadline of the check. Raises OSError."""
        return Outcome(*run(command, dict(self.env, **variables)))

    def read(self, path):
        """The text of a small file below `root`, without white space around it; None if it cannot be read."""
        return read(self.root + path)

    def names(self, path):
        return sorted(names(self.root + path))


def read_recipe(directory):
    """The parameters, of those that are texts, in the recipe that EasyBuild keeps in an installation."""
    try:
        (copy,) = (path for path in (directory / "easybuild").glob("*.eb") if path.is_file())
        found = re.findall(r"^(\w+)[ \t]*=[ \t]*([\"'])(.*?)\2", copy.read_text(), re.MULTILINE)
    except (OSError, ValueError):
        return {}
    return {name: value for name, _, value in found}


def last_line(text):
    """The last line of a command's output, without colours, and without Apptainer's INFO lines if there are others."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("INFO")] or lines or ["no output"]
    return lines[-1][:300]
