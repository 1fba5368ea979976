"""Starts lm_fsdp.py on two nodes of the testbed, and kills its ranks or finds their checkpoints."""

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path

#: For a busy machine; a start takes some 10 seconds.
SECONDS = 900
COMPLETE = re.compile(r"step-(\d{8})")
TEMPORARY = re.compile(r"\.step-(\d{8})\.[0-9a-f]{8}")


class LanguageModel:
    """Starts of one training in the directory `work`, which keeps its checkpoints in `work`/run."""

    def __init__(self, testbed, module, work):
        text = work / "text"
        text.mkdir()
        for part in range(4):
            lines = (f"{number} and {number + 1} are {2 * number + 1}\n" for number in range(part, 4000, 4))
            (text / f"{part}.txt").write_text("".join(lines))
        self.work, self.run = work, work / "run"
        self.checkpoints = self.run / "checkpoints"
        self.stale = set()  # what starts before this one left half-written
        script = f"module load {module}; unset MNIST_ROOT; export OMP_NUM_THREADS=1; env -0"
        entries = testbed.run(script).split("\0")
        self.environment = dict(entry.split("=", 1) for entry in entries if entry)

    def start(self, *options, keep="run"):
        """Start two ranks on two nodes; without `keep`, without checkpoints."""
        payload = self.environment["PAYLOAD"]
        self.stale = {path.name for path in self.checkpoints.glob(".*")}
        saved = ("--modelpath", self.work / keep) if keep else ()
        line = (
            "srun",
            "-N2",
            "-n2",
            "conda-python-distributed",
            "-u",
            f"{payload}/lm_fsdp.py",
            "--data",
            self.work / "text",
            "--context",
            32,
            "--batch-size",
            4,
            *saved,
            *options,
        )
        return Start(list(map(str, line)), self.environment, self.work)

    def complete(self):
        """Return the steps of the complete checkpoints, oldest first."""
        return sorted(steps_of(self.checkpoints, COMPLETE, self.stale))

    def is_saving(self):
        """Return whether this start is writing a checkpoint: after more steps than the newest complete one."""
        newest = max(self.complete(), default=-1)
        return any(step > newest for step in steps_of(self.checkpoints, TEMPORARY, self.stale, "*.distcp"))


def steps_of(directory, pattern, stale, content=""):
    """Return the steps in the names that match `pattern`, but `stale` ones, of directories with a file `content`."""
    found = []
    for path in directory.iterdir() if directory.is_dir() else ():
        match = pattern.fullmatch(path.name)
        with contextlib.suppress(OSError):  # it was renamed
            if match and path.name not in stale and (not content or any(path.glob(content))):
                found.append(int(match[1]))
    return found


class Start:
    """One start of the ranks, with its output."""

    def __init__(self, line, environment, work):
        self.line, self.work = line, work
        self.log = work / "log"
        with self.log.open("w") as log:
            self.srun = subprocess.Popen(
                line, env=environment, cwd=work, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def output(self):
        """Return the output so far."""
        return self.log.read_text()

    def ranks(self):
        """Return the process IDs of the ranks, rank 0 first; fewer if not all run."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if os.fsencode(self.work) in b" ".join(words) and b"srun" not in words[0]:
                    variables = (entry / "environ").read_bytes().split(b"\0")
                    number = next((word[13:] for word in variables if word.startswith(b"SLURM_PROCID=")), None)
                    if number is not None:
                        found[int(number)] = int(entry.name)
        return [found[rank] for rank in sorted(found)]

    def wait_until(self, condition):
        """Return when `condition` holds, or when the ranks have ended."""
        deadline = time.monotonic() + SECONDS
        while not condition() and self.srun.poll() is None:
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.005)

    def wait(self):
        """Return the exit status of the ranks."""
        try:
            return self.srun.wait(SECONDS)
        finally:
            self.srun.kill()


def kill_all(processes):
    """Kill processes; those that have ended do not count."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


@contextlib.contextmanager
def stopped(processes):
    """Stop processes for the time of the block, so that nothing changes between a look and a kill."""
    for sign in (signal.SIGSTOP, signal.SIGCONT):
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, sign)
        if sign == signal.SIGSTOP:
            yield
