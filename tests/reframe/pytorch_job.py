"""What all tests share: a job with the environment's PyTorch module, shaped by the site file, and its references.

A site file (sites/) describes a system. ``extras`` of a partition:

- ranks_per_node (int): ranks on a node, one per GPU
- nodes (int): the largest job of the tests with `nodes` = "many"
- cpus_per_task (int): cores of a rank, if the site's launch line requests them
- srun_options (list of str): further options of srun in the launch line of ranks
- one_node_variables (dict): variables for jobs on one node
- allreduce_options (list of str): options of ``allreduce_check.py``
- mpirun (dict): commands of the features ``openmpi`` and ``mpich``
- language_model (list of str): options of ``lm_fsdp.py``
- references (dict): test -> "<nodes>x<ranks per node>" -> performance variable -> [value, lower, upper, unit], as in
  ReFrame

``extras`` of an environment with the feature ``pytorch``:

- module (str): the PyTorch module, one of the environment's ``modules``
- enter (str): the start of a command that runs in the image, with a blank at its end
- runscripts (str): the directory of the runscripts, with a slash at its end, if they are not on the PATH there
- srun_options (list of str): options of srun that start the image
- variables (list of str): variables of the module beside those of every PyTorch module
"""

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import run_after, run_before, variable
from reframe.core.exceptions import ReframeError

#: Tags for the three occasions of docs/reframe.md. Each includes the tests of the one before.
UPGRADE = {"upgrade"}
WEEKLY = UPGRADE | {"weekly"}
PREFLIGHT = WEEKLY | {"preflight"}


def passes(output, *patterns, faults=None):
    """Whether the output has a line of each pattern and none of `faults`, which else are the reason of the failure."""
    found = sn.extractall(faults, output) if faults else []
    return sn.all([sn.assert_eq(found, [], msg="{0}"), *(sn.assert_found(pattern, output) for pattern in patterns)])


class PyTorchJob(rfm.RunOnlyRegressionTest):
    """A job on one or several nodes: one rank per GPU, or one task per node."""

    valid_systems = ["+nodes"]
    valid_prog_environs = ["+pytorch"]
    time_limit = "15m"
    #: The nodes of `nodes` = "many", instead of the site file's: ``-S largest=64``.
    largest = variable(int, value=0)
    tasks_are_ranks = True

    @run_after("setup")
    def request_nodes(self):
        site = self.current_partition.extras
        self.node_count = self.nodes
        if self.nodes == "many":
            self.node_count = self.largest or site["nodes"]
            self.skip_if(self.node_count <= 2, "two nodes are the largest job: -S largest=N")
        self.ranks_per_node = site["ranks_per_node"]
        self.shape = f"{self.node_count}x{self.ranks_per_node}"
        self.num_tasks_per_node = self.ranks_per_node if self.tasks_are_ranks else 1
        self.num_tasks = self.node_count * self.num_tasks_per_node

    @run_after("setup")
    def request_devices(self):
        site = self.current_partition.extras
        gpus = sum(device.num_devices for device in self.current_partition.select_devices("gpu"))
        self.has_gpus = bool(gpus)
        if gpus:
            self.num_gpus_per_node = gpus
        cores = site.get("cpus_per_task")
        if cores:
            self.num_cpus_per_task = cores if self.tasks_are_ranks else cores * site["ranks_per_node"]
        if self.node_count == 1:
            self.env_vars = site.get("one_node_variables", {})
        options = list(self.current_environ.extras.get("srun_options", []))
        if self.tasks_are_ranks:
            options += site.get("srun_options", [])
        elif gpus:
            options.append(f"--gpus-per-node={gpus}")
        self.job.launcher.options = options

    def runscript(self, name):
        """Return the command of a runscript in the environment's image or venv."""
        extras = self.current_environ.extras
        return extras.get("enter", "") + extras.get("runscripts", "") + name

    def run_payload(self, script, *options):
        """Run a script of the payload with options on all ranks."""
        self.executable = self.runscript("conda-python-distributed")
        self.executable_opts = ["-u", f"$PAYLOAD/{script}", *(["--gpu"] if self.has_gpus else []), *options]

    def site_references(self):
        """Return the site's references of this test in this shape: variable -> (value, lower, upper, unit)."""
        of_test = self.current_partition.extras.get("references", {}).get(type(self).__qualname__.split("_")[0], {})
        return {name: tuple(value) for name, value in of_test.get(self.shape, {}).items()}

    @run_before("performance", always_last=True)
    def set_references(self):
        unknown = set(self.site_references()) - set(self.perf_variables)
        if unknown:
            raise ReframeError(f"{self.current_partition.fullname}: no such performance variable: {', '.join(unknown)}")
        self.reference = {self.current_partition.fullname: self.site_references()}
