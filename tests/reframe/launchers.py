"""Every launcher starts all ranks of one world, in image and venv."""

import reframe as rfm
from pytorch_job import PREFLIGHT, UPGRADE, PyTorchJob, passes
from reframe.core.backends import getlauncher
from reframe.core.builtins import parameter, run_after, run_before, sanity_function

#: Feature of a partition -> its launch line (docs/launch.md). Several lines may need the same launcher.
LINES = {
    "srun": "srun {options} {run}conda-python-distributed {script}",
    "torchrun": "srun --ntasks={nodes} --ntasks-per-node=1 {node_options} "
    "{run}torchrun-distributed --nproc-per-node={per_node} {script}",
    "ddp-env": "srun {options} {enter}bash -c 'source <({runscripts}ddp-env) && exec python -u {script}'",
    "openmpi": "{openmpi} -np {ranks} --map-by ppr:{per_node}:node {run}conda-python-distributed {script}",
    "mpich": "{mpich} -n {ranks} -ppn {per_node} {run}conda-python-distributed {script}",
    "flux": "flux run -N{nodes} --tasks-per-node={per_node} --exclusive {run}conda-python-distributed {script}",
    "pals": "mpiexec -n {ranks} --ppn {per_node} {run}conda-python-distributed {script}",
    "openmpi-torchrun": "{openmpi} -np {nodes} --map-by ppr:1:node --bind-to none "
    "{run}torchrun-distributed --nproc-per-node={per_node} {script}",
    "mpich-torchrun": "{mpich} -n {nodes} -ppn 1 -bind-to none "
    "{run}torchrun-distributed --nproc-per-node={per_node} {script}",
}


@rfm.simple_test
class Launcher(PyTorchJob):
    """The ranks of two nodes compute the same sums; small messages, no speed."""

    descr = "A launcher starts the ranks of two nodes"
    launcher = parameter(LINES)
    nodes = 2

    @run_after("init")
    def select_partitions(self):
        self.valid_systems = [f"+nodes +{self.launcher.split('-torchrun')[0]}"]
        self.tags = PREFLIGHT if self.launcher == "srun" else UPGRADE

    @run_before("run")
    def set_command(self):
        site = self.current_partition.extras
        extras = self.current_environ.extras
        of_ranks = self.job.launcher.options
        of_node = list(extras.get("srun_options", []))
        if self.num_cpus_per_task:
            of_ranks = [f"--cpus-per-task={self.num_cpus_per_task}", *of_ranks]
            of_node.append(f"--cpus-per-task={self.num_cpus_per_task * self.ranks_per_node}")
        if self.num_gpus_per_node:
            of_node.append(f"--gpus-per-node={self.num_gpus_per_node}")
        self.executable = LINES[self.launcher].format(
            options=" ".join(of_ranks),
            node_options=" ".join(of_node),
            nodes=self.node_count,
            ranks=self.num_tasks,
            per_node=self.ranks_per_node,
            enter=extras.get("enter", ""),
            runscripts=extras.get("runscripts", ""),
            run=self.runscript(""),
            script=f"$PAYLOAD/allreduce_check.py --max-size 64 {'--gpu' * self.has_gpus}",
            **site.get("mpirun", {}),
        )
        self.job.launcher = getlauncher("local")()

    @sanity_function
    def is_one_world(self):
        world = rf"^all-reduce check: ranks {self.num_tasks}, nodes {self.node_count},"
        return passes(self.stdout, world, r"^sums: right in all \d+ sizes on all ranks$")
