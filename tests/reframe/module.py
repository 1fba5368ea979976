"""The module on compute nodes: its interface, the doctor, and a package that a user installs."""

import reframe as rfm
import reframe.utility.sanity as sn
from pytorch_job import PREFLIGHT, UPGRADE, WEEKLY, PyTorchJob, passes
from reframe.core.backends import getlauncher
from reframe.core.builtins import parameter, run_after, run_before, sanity_function
from reframe.core.runtime import runtime

WHEEL = "site_check-1.0-py3-none-any.whl"
#: One write per rank: ranks share the output.
IMPORT = r'''"import os, site_check, torch; os.write(1, f'rank has {site_check.WORD}\n'.encode())"'''


@rfm.simple_test
class ModuleInterface(PyTorchJob):
    """What docs/module.md promises, on a compute node."""

    descr = "Variables, commands and help of the module; unloading restores the environment"
    nodes = 1
    tasks_are_ranks = False
    tags = PREFLIGHT

    @run_before("run")
    def set_command(self):
        extras = self.current_environ.extras
        self.job.launcher = getlauncher("local")()
        self.executable = "source"
        modules = runtime().modules_system.resolve_module(extras["module"])  # --map-module
        self.executable_opts = ["interface.bash", *modules, *extras.get("variables", [])]

    @sanity_function
    def is_complete(self):
        return passes(self.stdout, "^interface: ok$", faults="^FAIL .*")


@rfm.simple_test
class Doctor(PyTorchJob):
    """A check that fails is named with its node and the remedy."""

    descr = "pytorch-doctor on every node"
    nodes = parameter([1, 2, "many"])
    tasks_are_ranks = False

    @run_after("init")
    def set_tags(self):
        self.tags = WEEKLY if self.nodes == 2 else PREFLIGHT

    @run_before("run")
    def set_command(self):
        # on the host, from where it starts the image
        image = self.current_environ.extras.get("srun_options", [])
        options = [option for option in self.job.launcher.options if option not in image]
        # a node with a fault does not end the step: the other nodes report theirs
        self.job.launcher.options = [*options, "--kill-on-bad-exit=0"]
        self.executable = "pytorch-doctor"
        self.executable_opts = ["--faults"]

    @sanity_function
    def finds_nothing(self):
        summaries = sn.count(sn.findall(r"^\S+: \d+ ok", self.stdout))
        nothing = passes(self.stdout, faults=r"^\S+: [\w-]+ +FAIL .*")
        return sn.all([nothing, sn.assert_eq(summaries, self.node_count)])


@rfm.simple_test
class UserSoftware(PyTorchJob):
    """pip of the module, into this user's directory for this module; needs no network."""

    descr = "pip install --user, import on all ranks, pip uninstall"
    nodes = 2
    tags = UPGRADE

    @run_before("run")
    def set_commands(self):
        self.prerun_cmds = [
            "trap 'pip uninstall --quiet --yes site-check' EXIT",
            f"python -m zipfile -c {WHEEL} site_check.py site_check-1.0.dist-info",
            "mkdir -p elsewhere",  # the ranks must not find the module in their working directory
            f"pip install --user --quiet --no-index --no-deps ./{WHEEL}",
            "cd elsewhere",
        ]
        self.executable = self.runscript("conda-python-distributed")
        self.executable_opts = ["-c", IMPORT]
        self.postrun_cmds = ["cd ..", "list-packages --user"]

    @sanity_function
    def is_imported_everywhere(self):
        ranks = sn.count(sn.findall("^rank has installed by a user$", self.stdout))
        return sn.all([sn.assert_eq(ranks, self.num_tasks), passes(self.stdout, "site[-_]check")])
