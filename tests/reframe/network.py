"""All-reduces between all ranks: right sums, latency, bandwidth."""

import re

import reframe as rfm
import reframe.utility.sanity as sn
from pytorch_job import PREFLIGHT, WEEKLY, PyTorchJob, passes
from reframe.core.builtins import parameter, run_after, run_before, sanity_function

#: A row of the table of allreduce_check.py: size, time in microseconds, algorithm and bus bandwidth in GB/s.
ROW = r"^ *{size} +(?P<time>[\d.]+) +[\d.]+ +(?P<bus>[\d.]+)  "


@rfm.simple_test
class AllReduce(PyTorchJob):
    """``allreduce_check.py``: a missed reference names the size, ranks with wrong sums are named with their nodes."""

    descr = "All-reduce: sums, latency, bandwidth"
    nodes = parameter([1, 2, "many"])

    @run_after("init")
    def set_tags(self):
        self.tags = WEEKLY if self.nodes == 1 else PREFLIGHT

    @run_before("run")
    def set_command(self):
        # the check measures the sizes of its thresholds; the references judge them
        sizes = " ".join(f"0.000001@{size}" for size in self.sizes())
        options = self.current_partition.extras.get("allreduce_options", [])
        self.run_payload("allreduce_check.py", *options, f"--threshold '{sizes}'")

    def sizes(self):
        """Return the sizes whose bandwidth is reported: 1 MiB, the check's largest, and those with a reference."""
        referenced = [name[len("busbw_") :] for name in self.site_references() if name.startswith("busbw_")]
        return dict.fromkeys(["1MiB", "256MiB" if self.has_gpus else "16MiB", *referenced])

    def row(self, size):
        """Return the pattern of the row for a size, such as 16MiB."""
        return ROW.format(size=" ".join(re.fullmatch(r"(\d+)(\D+)", size).groups()))

    @sanity_function
    def is_right(self):
        rows = [self.row(size) for size in self.sizes()]  # ReFrame only warns if a value cannot be read
        world = rf"^all-reduce check: ranks {self.num_tasks}, nodes {self.node_count},"
        return passes(self.stdout, *rows, world, "^all-reduce check: ok$", faults="^FAIL .*")

    @run_before("performance")
    def measure(self):
        def column(size, name, unit):
            return sn.make_performance_function(sn.extractsingle(self.row(size), self.stdout, name, float), unit)

        self.perf_variables = {"latency_4B": column("4B", "time", "us")}
        for size in self.sizes() if self.num_tasks > 1 else ():
            self.perf_variables[f"busbw_{size}"] = column(size, "bus", "GB/s")
