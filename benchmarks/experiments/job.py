"""A job of two ranks with one all-reduce: its CPU time, and its wait for a name server."""

import socket

from benchmarks.comparison import PROGRAMS, Comparison, Experiment, compare
from benchmarks.experiments.steps import ONE_NODE, TWO_RANKS
from benchmarks.programs.cpu_seconds import find_reports
from testbed.layout import TestbedError
from testbed.recipes import VENV, module

#: A loopback address for a name server that never answers.
SILENT_SERVER = "127.0.0.99"


def cpu(session):
    """The CPU time of two ranks: by the launch script, by torchrun, and by plain assignments."""
    env = session.environment(f"module load {module(VENV)}")

    def cpu_seconds(tasks, *launcher):
        srun = [*ONE_NODE, f"-n{tasks}", *(["--cpus-per-task=2"] if tasks == 1 else [])]
        job = [*srun, PROGRAMS / "cpu_seconds.py", *launcher, PROGRAMS / "all_reduce.py"]
        seconds = find_reports(session.run(job, env))
        if len(seconds) != tasks:  # a side without one of its tasks would seem cheap
            raise TestbedError(f"{len(seconds)} tasks of {tasks} reported their CPU seconds.")
        return sum(seconds)

    def measure_round():
        script = cpu_seconds(2, "conda-python-distributed")
        torchrun = cpu_seconds(1, "torchrun", "--standalone", "--nproc-per-node=2")
        plain = cpu_seconds(2, PROGRAMS / "exec-only")
        return {"cpu": (script, plain), "cpu-torchrun": (torchrun, plain)}

    return measure_round


def dead_dns(session):
    """The time of a job where the name server does not answer, and where no server is asked."""
    silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    silent.bind((SILENT_SERVER, 53))
    env = session.environment(f"module load {module(VENV)}")

    def seconds(kind):
        env["SILENT_SERVER"], _ = silent.getsockname()
        job = [*TWO_RANKS, PROGRAMS / "dead-dns", kind, "conda-python-distributed", PROGRAMS / "all_reduce.py"]
        return session.time(job, env)

    return lambda: seconds("names"), lambda: seconds("addresses")


EXPERIMENTS = (
    Experiment(
        (
            Comparison(
                name="cpu",
                title="CPU time of a 2-rank job with one all-reduce, against plain assignments",
                a="CPU seconds of both tasks of `srun -N1 -n2 conda-python-distributed all_reduce.py` (`import torch`, "
                "gloo, one all-reduce)",
                b="the same with `exec-only`, a script of plain assignments, instead of `conda-python-distributed`",
                target=1.05,
            ),
            Comparison(
                name="cpu-torchrun",
                title="CPU time of the same job under torchrun, against plain assignments",
                a="CPU seconds of the task of `srun -N1 -n1 torchrun --standalone --nproc-per-node=2 all_reduce.py`, "
                "workers included",
                b="B of `cpu`",
            ),
        ),
        cpu,
        rounds=7,
        seconds=9,
        recipes=(VENV,),
    ),
    compare(
        Comparison(
            name="dead-dns",
            title="2-rank job with one all-reduce and a silent name server, against none asked",
            a="seconds of `srun -N2 --ntasks-per-node=1 conda-python-distributed all_reduce.py` with a silent name "
            "server (`dead-dns names`)",
            b="the same with every address in /etc/hosts (`dead-dns addresses`)",
            target=1.5,
            reference="torch alone: 5 s or 10 s more",
        ),
        dead_dns,
        rounds=7,
        seconds=6,
        recipes=(VENV,),
        root=True,
    ),
)
