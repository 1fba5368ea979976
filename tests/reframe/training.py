"""Training: MNIST by DistributedDataParallel and a language model by FSDP2, with result and speed."""

import reframe as rfm
import reframe.utility.sanity as sn
from pytorch_job import UPGRADE, WEEKLY, PyTorchJob, passes
from reframe.core.builtins import parameter, performance_function, run_after, run_before, sanity_function


class Training(PyTorchJob):
    """A script of the payload on all ranks."""

    nodes = parameter([1, 2, "many"])

    @run_after("init")
    def set_tags(self):
        self.tags = WEEKLY if self.nodes == 2 else UPGRADE

    @performance_function("s")
    def training_time(self):
        return sn.extractsingle(r"^training time: ([\d.]+) s", self.stdout, 1, float)


@rfm.simple_test
class TrainMNIST(Training):
    """The result does not depend on the system; the speed does."""

    descr = "MNIST: accuracy and time"
    #: Only tests that train on the data load it: where it is not installed, the others run.
    modules = ["MNIST"]
    #: Percent after one epoch; 98.7 is usual.
    least_accuracy = 97.0

    @run_before("run")
    def set_command(self):
        # an epoch takes a second or less on GPUs, too short to measure
        self.run_payload("mnist_ddp.py", "--epochs", "5" if self.has_gpus else "1")

    @sanity_function
    def learns(self):
        images = passes(self.stdout, rf"^world size {self.num_tasks}, .*: 60000 training and 10000 test images")
        return sn.all([images, sn.assert_ge(self.accuracy(), self.least_accuracy)])

    @performance_function("%")
    def accuracy(self):
        return sn.extractsingle(r"^test accuracy: ([\d.]+) %", self.stdout, 1, float)

    @performance_function("images/s")
    def images_per_second(self):
        return sn.extractall(r"images/s (\d+)", self.stdout, 1, float)[-1]


@rfm.simple_test
class TrainLanguageModel(Training):
    """A sharded GPT: loss below that of single bytes, tokens per second."""

    descr = "Language model with FSDP2: loss and tokens/s"

    @run_before("run")
    def set_command(self):
        self.run_payload("lm_fsdp.py", *self.current_partition.extras["language_model"])

    @sanity_function
    def learns(self):
        return sn.assert_lt(self.validation_loss(), 3.2)  # of a model that knows only how frequent each byte is

    @performance_function("tokens/s")
    def tokens_per_second(self):
        return sn.extractall(r"tokens/s (\d+)", self.stdout, 1, float)[-1]

    @performance_function("nats")
    def validation_loss(self):
        return sn.extractsingle(r"^validation loss: ([\d.]+)", self.stdout, 1, float)
