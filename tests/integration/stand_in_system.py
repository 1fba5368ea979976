"""A system of stand-ins, on which recipes are installed and their lines start ranks."""

from collections import Counter

from testbed import recipes
from testbed.stand_ins.systems import StandIns

#: Computes the sum 1 + 2 + 4 + ... over the ranks.
PROBE = """
import os, socket, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([2.0 ** dist.get_rank()])
dist.all_reduce(total)
os.write(1, f"{torch.__version__} sum {int(total)} on {socket.gethostname()}\\n".encode())
dist.destroy_process_group()
time.sleep(0.1)  # docs/troubleshooting.md: with gloo, a process that ends at once may abort
"""


class System:
    """A system of stand-ins, with its own software directory."""

    def __init__(self, testbed, directory, *, tasks_per_node):
        self.testbed = testbed
        self.tasks_per_node = tasks_per_node
        self.directory = directory
        self.stand_ins = StandIns(testbed.layout, directory / "stand-ins")
        self.installed = directory / "installed"
        self.index = f"export PIP_NO_INDEX=1 PIP_FIND_LINKS={self.stand_ins.wheels}"
        (directory / "probe.py").write_text(PROBE)

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
        tasks, count = self.tasks_per_node, 2 * self.tasks_per_node
        line = line.replace("--ntasks-per-node=2", f"--ntasks-per-node={tasks}").replace("-n4", f"-n{count}")
        output = self.run(f"{settings}\nmodule load {recipes.module(name)}\n{line}")
        ranks = [line.split(" on ") for line in output.splitlines() if " sum " in line]
        assert [result for result, _ in ranks] == [f"{version} sum {2**count - 1}"] * count, output
        assert sorted(Counter(node for _, node in ranks).values()) == [tasks, tasks], output

    def check_environment(self, name, line, settings=""):
        """Make an environment on top of an installed module, activate it, and start 4 ranks with the line."""
        show = """-c "import os, sys; os.write(1, f'ran in {sys.prefix}\\n'.encode())" """
        make = "rm -rf v; python -m venv --without-pip --system-site-packages v; source v/bin/activate"
        load = f"unset PYTORCH_LAUNCH_ACTIVE; {settings}\nmodule load {recipes.module(name)}"
        output = self.run(f"{load}\n{make}\n{line} {show}")
        assert output.count(f"ran in {self.directory}/v\n") == 4, output
