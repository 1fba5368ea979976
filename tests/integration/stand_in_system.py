"""A system of stand-ins, on which recipes are installed and their lines start ranks."""

import re
import tempfile
from collections import Counter
from pathlib import Path

from meeting import PROBE, TORCH_PROBE, ranks

from testbed import recipes
from testbed.stand_ins.systems import StandIns


class System:
    """A system of stand-ins, with its own software directory."""

    def __init__(self, testbed, directory, *, tasks_per_node):
        self.testbed = testbed
        self.tasks_per_node = tasks_per_node
        self.directory = directory
        self.stand_ins = StandIns(testbed.layout, directory / "stand-ins")
        self.installed = directory / "installed"
        self.index = f"export PIP_NO_INDEX=1 PIP_FIND_LINKS={self.stand_ins.wheels}"
        # installing has imported torch; the ranks import it with --thorough
        (directory / "probe.py").write_text(PROBE if tasks_per_node == 1 else TORCH_PROBE)

    def run(self, script):
        """Run a script in a user's shell of the system."""
        lines = [
            f"export PATH={self.stand_ins.bin}:$PATH",
            *(
                f"export EASYBUILD_{name}={self.installed / name}"
                for name in ("SOURCEPATH", "INSTALLPATH", "BUILDPATH", "REPOSITORYPATH")
            ),
            f"module use {self.stand_ins.modulefiles} {self.installed}/INSTALLPATH/modules/all",
        ]
        return self.testbed.run("\n".join([*lines, script]), cwd=self.directory, timeout=1800)

    def check(self, name, line, *, version, changes=(), settings=""):
        """Install a recipe with `changes`, load its module, and start ranks on 2 nodes with its line."""
        path = self.stand_ins.recipe(name, *changes)
        self.run(f"{settings}\neb {path}")
        tasks = self.tasks_per_node
        count = 2 * tasks
        line = line.replace("--ntasks-per-node=2", f"--ntasks-per-node={tasks}").replace("-n4", f"-n{count}")
        output = self.run(f"{settings}\nmodule load {recipes.module(name)}\n{line}")
        found = [(words[0], *words[-2:]) for words in ranks(output)]
        assert [(number, torch) for number, _, torch in found] == [(str(count), version)] * count, output
        assert sorted(Counter(node for _, node, _ in found).values()) == [tasks, tasks], output

    def check_environment(self, name, line, settings=""):
        """Make an environment on top of an installed module, activate it, and start 4 ranks with the line.

        With --thorough also what docs/systems.md lists of each engine: an environment that is active before the module
        is loaded, a working directory that is a link, and a script that the image does not see.
        """
        show = """-c "import os, sys; os.write(1, f'ran in {sys.prefix} at {os.getcwd()}\\n'.encode())" """
        make = "rm -rf v; python -m venv --without-pip --system-site-packages v; source v/bin/activate"
        load = f"{settings}\nmodule load {recipes.module(name)}"
        with_active = f"unset PYTORCH_LAUNCH_ACTIVE\n{load}"
        found = f"ran in {self.directory}/v at {self.directory}"
        output = self.run(f"{with_active}\n{make}\n{line} {show}")
        assert output.count(f"{found}\n") == 4, output
        if self.tasks_per_node == 1:
            return
        output = self.run(f"source v/bin/activate\n{with_active}\n{line} {show}")
        assert output.count(f"{found}\n") == 4, output
        output = self.run(f"mkdir -p real; ln -sfn real link\n{load}\ncd link\n{line} {show}")
        # the Container Engine mounts the directory by the link's name
        assert len(re.findall(f" at {self.directory}/(real|link)\n", output)) == 4, output
        with tempfile.TemporaryDirectory(dir="/var/tmp") as unseen:
            Path(unseen, "train.py").write_text("import os; os.write(1, b'ran\\n')")
            output = self.run(f"{load}\n{line} {unseen}/train.py 2>&1 || true")
        assert output.count("ran\n") == 4 or f"{unseen}/train.py" in output, output
