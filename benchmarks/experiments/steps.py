"""Steps of the testbed's cluster that several experiments use: as options of srun, and as a rank's variables."""

from testbed.layout import NODES

#: Two ranks share a core: the testbed's nodes are one machine.
FOUR_RANKS = ("srun", "-N2", "--ntasks-per-node=2")
#: A core for each rank. With fewer CPUs per task Slurm binds both ranks to the first core of their node, which is
#: the same core on one machine.
TWO_RANKS = ("srun", "-N2", "--ntasks-per-node=1", "--cpus-per-task=2")
#: The node that `programs/exec-only` uses as the master.
ONE_NODE = ("srun", "-N1", f"--nodelist={NODES[0]}")
#: As many ranks as a LUMI-G node has GPUs; more than the machine has cores.
NODE_OF_RANKS = (*ONE_NODE, "-n8", "--overcommit")
RANKS = 8
