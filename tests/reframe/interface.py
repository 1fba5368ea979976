"""The module's interface: variables, commands, help, and an environment that unloading restores."""

import reframe as rfm
import reframe.utility.sanity as sn
from pytorch_job import PREFLIGHT, PyTorchJob
from reframe.core.backends import getlauncher
from reframe.core.builtins import run_before, sanity_function
from reframe.core.runtime import runtime


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
        faults = sn.extractall(r"^FAIL .*", self.stdout)
        return sn.all([sn.assert_eq(faults, [], msg="{0}"), sn.assert_found(r"^interface: ok$", self.stdout)])
