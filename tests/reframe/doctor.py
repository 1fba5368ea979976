"""pytorch-doctor on every node of a job."""

import reframe as rfm
import reframe.utility.sanity as sn
from pytorch_job import PREFLIGHT, WEEKLY, PyTorchJob
from reframe.core.builtins import parameter, run_after, run_before, sanity_function


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
        faults = sn.extractall(r"^\S+: [\w-]+ +FAIL .*", self.stdout)
        summaries = sn.findall(r"^\S+: \d+ ok", self.stdout)
        return sn.all([sn.assert_eq(faults, [], msg="{0}"), sn.assert_eq(sn.count(summaries), self.node_count)])
