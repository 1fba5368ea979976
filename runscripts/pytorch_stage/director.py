"""Directs the keepers of a job: starts them, has the file copied, and stays until they end."""

import hmac
import os
import subprocess
import time

from pytorch_stage import (
    ADDRESSES,
    ANSWER_SECONDS,
    FILE,
    LINGER_SECONDS,
    PART,
    PREFIX,
    TOKEN,
    DamagedError,
    StageError,
)
from pytorch_stage.announcing import answer
from pytorch_stage.channel import Channel, ClosedError, listen, own_addresses, ready
from pytorch_stage.checksum import checksum
from pytorch_stage.places import candidates, choose
from pytorch_stage.starting import first_nodes, start_command, start_environment
from pytorch_stage.tree import parent_of

#: For the keepers to remove their directories and end.
END_SECONDS = 10


class BusyError(StageError):
    """Another process of this job stages the same file."""


class Director:
    """One staging; `env` is the environment of the job, `launcher` the user's command that starts the keepers."""

    def __init__(self, item, env, launcher):
        self.item = item
        self.env = env
        self.launcher = launcher
        self.token = os.urandom(16).hex()
        self.keepers = {}  # Channel to the first message of its keeper
        self.process = None
        self.has_lost = False  # a keeper was killed

    def stage(self):
        """Stage the file on all nodes; return a dictionary with `path`, `nodes` and seconds. Raises StageError."""
        began = time.monotonic()
        command = start_command(self.env, self.launcher)
        self.start(command)
        directory = self.choose_directory()
        for keeper in self.keepers:
            keeper.send(item=self.item.as_dict(), make=directory)
        busy = {keeper: answer["path"] for keeper, answer in self.collect("made").items() if "busy" in answer}
        if len(busy) == len(self.keepers):
            return self.find_others(set(busy.values()))
        if not all(busy.values()):
            raise BusyError("another process stages the file")
        for keeper in busy:  # of a staging that has lost a keeper since
            keeper.send(replace=True)
        self.collect("made", busy)
        copying = time.monotonic()
        self.copy(directory)
        answers = self.collect("ready", seconds=None).values()
        if any("found" in answer for answer in answers):
            raise self.explain(next(answer for answer in answers if "found" in answer))
        paths = {answer["ready"] for answer in answers}
        for keeper in self.keepers:
            keeper.send(serve=True)
        now, checking = time.monotonic(), max(answer["seconds"] for answer in answers)
        where = min(paths) if "SIF" in self.item.variables else os.path.dirname(directory)
        return {"path": where, "nodes": len(answers), "total": now - began, "checking": checking,
                "copying": now - copying - checking}  # fmt: skip

    def start(self, command):
        """Start the keepers and wait until all have connected."""
        with listen(4096) as listener:
            port = listener.getsockname()[1]
            variables = start_environment(self.env, self.launcher)
            variables[ADDRESSES] = ",".join(f"{host}:{port}" for host in own_addresses(first_nodes(self.env)))
            variables.update({TOKEN: self.token, FILE: self.item.path})
            try:
                self.process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL,
                                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # fmt: skip
            except OSError as error:
                raise StageError(f"{command[0]} cannot be started: {error.strerror}") from error
            self.accept(listener)

    def accept(self, listener):
        """Accept connections until every keeper has sent its first message."""
        deadline, expected, new, addresses = time.monotonic() + ANSWER_SECONDS, None, [], {}
        while expected is None or len(self.keepers) < expected:
            if self.process.poll() is not None:
                raise StageError(f"the processes on the nodes have ended: {self.complaint()}")
            if time.monotonic() > deadline:
                raise StageError(f"{len(self.keepers)} of {expected or 'the'} nodes answered within {ANSWER_SECONDS} s")
            for end in ready([listener, *new], 0.5):
                if end is listener:
                    connection, address = listener.accept()
                    new.append(Channel(connection))
                    addresses[new[-1]] = address[0]
                    continue
                new.remove(end)
                try:
                    message = end.receive(10) or {}
                except ClosedError:
                    continue
                if hmac.compare_digest(str(message.get("token")), self.token):
                    if "problem" in message:
                        raise StageError(message["problem"])
                    self.keepers[end] = {**message, "address": addresses[end]}
                    expected = message["size"]

    def complaint(self):
        """The last line that the command wrote to standard error."""
        lines = self.process.stderr.read().decode(errors="replace").split("\n") if self.process.stderr else []
        return next((line for line in reversed(lines) if line.strip()), "no message")

    def choose_directory(self):
        """The path of the directory to make on every node."""
        rooms = {message["node"]: message["room"] for message in self.keepers.values()}
        # an unpacked copy has no known size: the keepers report when their disk is full
        base = choose(rooms, self.item.size, candidates(self.env))
        return os.path.join(base, PREFIX + os.urandom(8).hex())

    def collect(self, name, keepers=None, seconds=ANSWER_SECONDS):
        """The answers of keepers, by default of all, by keeper. Raises StageError with the first problem."""
        answers, waiting = {}, list(self.keepers if keepers is None else keepers)
        deadline = None if seconds is None else time.monotonic() + seconds
        while waiting:
            if deadline is not None and time.monotonic() > deadline:
                raise StageError(f"no answer from {self.keepers[waiting[0]]['node']} within {seconds} s")
            for keeper in ready(waiting, 1):
                answer = self.hear(keeper)
                if not {name, "busy", "found"} & set(answer):
                    for other in self.keepers:  # the problem may be that another one was killed
                        while self.hear(other, 0):
                            pass
                    raise StageError(answer.get("problem", "an unexpected answer"))
                answers[keeper] = answer
                waiting.remove(keeper)
        return answers

    def hear(self, keeper, seconds=None):
        """The next answer of a keeper, None if there is none after `seconds`. Raises ClosedError if it was killed."""
        try:
            return keeper.receive(seconds)
        except ClosedError:
            self.has_lost = True
            raise ClosedError(f"the process on {self.keepers[keeper]['node']} was killed") from None

    def find_others(self, paths):
        """The result of another staging that has finished on all nodes. Raises BusyError."""
        # an image has one path on all nodes, a venv has none
        if not all(paths) or "SIF" in self.item.variables and len(paths) != 1:
            raise BusyError("another process stages the file")
        self.release()
        return {"path": min(paths)}

    def copy(self, directory):
        """Have the file copied to all nodes along a tree, or by sbcast in a Slurm job whose user chose it."""
        is_sbcast = self.env.get("PYTORCH_LAUNCH_STAGE") == "sbcast" and not self.launcher
        if is_sbcast and self.broadcast(os.path.join(directory, PART)):
            for keeper in self.keepers:
                keeper.send(fetch=None)
            return
        # other nodes cannot connect to a loopback address, that of this node's keeper: it is a leaf
        keepers = sorted(self.keepers, key=lambda keeper: self.keepers[keeper]["address"].startswith("127."))
        for number, keeper in enumerate(keepers):
            parent = parent_of(number)
            source = self.item.path
            if parent is not None:
                source = [self.keepers[keepers[parent]][name] for name in ("address", "port")]
            keeper.send(fetch=source)

    def explain(self, answer):
        """The error for a copy with another checksum: damage of the copy, or of the shared file."""
        expected, place = f"it was installed with SHA-256 {self.item.sha256}", self.item.path
        with open(place, "rb") as file:
            if checksum(file.fileno()) != self.item.sha256:
                return DamagedError(f"{place} is damaged: {expected}, and has another now. Install the module again")
        return StageError(f"the copy on {answer['node']} is damaged: it has SHA-256 {answer['found']}, and {expected}")

    def broadcast(self, target):
        """Run Slurm's sbcast; return whether it succeeded."""
        command = ["sbcast", f"--jobid={self.env['SLURM_JOB_ID']}", self.item.path, target]
        try:
            done = subprocess.run(command, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)  # fmt: skip
        except OSError:
            return False
        return done.returncode == 0

    def watch(self, path, announced, is_needed):
        """Stay until a keeper or the command that started them ends, or `is_needed` is false, as the job has ended.

        `announced` is the socket where `path` is announced to other processes of this node.
        """
        channels = [announced, *self.keepers]
        announced.listen(64)
        while not self.has_lost and self.process.poll() is None and is_needed():
            for channel in ready(channels, 2):
                try:
                    if channel is announced:
                        answer(announced, path)
                    else:
                        channel.receive()
                except ClosedError:
                    self.has_lost = True
        announced.close()  # the next process of this node that asks stages again
        self.release()
        self.wait(END_SECONDS)

    def release(self):
        """Have all keepers remove their directories; they close the connection then."""
        for keeper in self.keepers:
            try:
                keeper.send(end=True)
            except ClosedError:
                self.has_lost = True
        deadline = time.monotonic() + END_SECONDS
        for keeper in self.keepers:
            try:
                while keeper.receive(max(0, deadline - time.monotonic())):
                    pass
            except ClosedError:
                pass
            keeper.close()
        if self.has_lost:
            self.sweep()

    def wait(self, seconds=LINGER_SECONDS + END_SECONDS):
        """Wait until the command that started the keepers ends, and end it after `seconds`."""
        if self.process is None:
            return
        for end in (self.process.terminate, self.process.kill):
            try:
                self.process.wait(seconds)
                return
            except subprocess.TimeoutExpired:
                end()

    def sweep(self):
        """Remove what keepers left that were killed; without success, the next staging on the node does."""
        command = start_command(self.env, self.launcher, "--sweep")
        variables = start_environment(self.env, self.launcher)
        try:
            subprocess.run(command, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, timeout=60)  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return

