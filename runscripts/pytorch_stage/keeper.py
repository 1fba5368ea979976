"""The process on each node: makes the directory, verifies the file, serves its path, and removes it with the job.

Two processes do this. The first only waits for the second, and removes the directory if that was killed.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from pytorch_packed import DAMAGED, NotMountedError, ask, listener, mount, service

from pytorch_stage import ADDRESSES, ANSWER_SECONDS, DIRECTORY, FILE, LINGER_SECONDS, PART, TOKEN, StageError
from pytorch_stage.announcing import answer, bind, is_announced
from pytorch_stage.channel import ClosedError, connect, ready
from pytorch_stage.checksum import checksum
from pytorch_stage.places import candidates, make, remove, remove_abandoned, rooms, sweep
from pytorch_stage.tree import Server, fetch

#: Two stagings that wait for each other give up, and try again.
BUSY_SECONDS = 5
#: For a keeper that has failed to notice the next one.
YIELD_SECONDS = 5
#: Signals at the end of a step or a job.
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main():
    """Keep the staged file of this node until the job ends; return the exit status."""
    sweep(candidates(os.environ))
    own = os.getpid()
    told, tells = os.pipe()
    worker = os.fork()
    if worker == 0:
        os.close(told)
        end_with(own)
        os._exit(work(tells))
    os.close(tells)
    for number in ENDS:
        signal.signal(number, lambda number, _: kill(worker, number))
    directory = read_all(told)
    status = os.waitpid(worker, 0)[1]
    if directory:
        remove_abandoned(directory)  # the worker was killed
    elif status:
        report_death()
    return 1 if status else 0


def report_death():
    """Tell the front that the worker was killed, perhaps before it could connect."""
    try:
        channel = connect(os.environ[ADDRESSES].split(","))
        channel.send(token=os.environ[TOKEN], problem=f"the process on {os.uname().nodename} was killed")
        channel.close()
    except StageError:
        return


def end_with(parent):
    """Let the kernel send SIGTERM when the parent ends (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def kill(pid, number):
    """Send a signal to a process that may have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def read_all(descriptor):
    """All text until the other end is closed."""
    with open(descriptor) as stream:
        return stream.read()


def work(tells):
    """Do what the front asks for; `tells` is a pipe to the first process. Returns the exit status."""
    for number in ENDS:
        signal.signal(number, lambda *_: sys.exit(0))
    keeper = None
    try:
        keeper = Keeper(connect(os.environ[ADDRESSES].split(",")), os.environ[TOKEN])
        keeper.prepare(tells)
        keeper.fill()
        keeper.serve()
        return 0
    except ClosedError:  # the front was killed, or gives up
        keeper.linger()
        return 0
    except (StageError, OSError) as error:
        if keeper:
            report(keeper.channel, error)
            keeper.linger()
        return 1
    except SystemExit:
        return 0
    finally:
        for number in ENDS:
            signal.signal(number, signal.SIG_IGN)
        if keeper and keeper.directory:
            remove(keeper.directory)


def report(channel, error):
    """Send the reason to the front, if it still listens."""
    try:
        channel.send(problem=str(error))
        channel.receive(ANSWER_SECONDS)  # until it ends all keepers
    except ClosedError:
        return


class Keeper:
    """The worker's state."""

    def __init__(self, channel, token):
        self.channel = channel
        self.token = token
        self.node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        self.server = Server(token)
        self.directory = None
        self.result = None
        # one keeper of a node works; another one may still tell that it has failed
        self.working = service(os.environ, os.environ[FILE], "keeper")
        self.claim, self.listener = bind(self.working), None
        if self.claim is not None:
            self.announce()

    def announce(self):
        """Listen where other keepers find this one, and where ranks find it and wait. Raises StageError."""
        self.claim.listen(4096)
        deadline = time.monotonic() + YIELD_SECONDS
        while time.monotonic() < deadline:
            self.listener = bind(service(os.environ, os.environ[FILE]))
            if self.listener is not None:
                self.listener.listen(4096)
                return
            time.sleep(0.05)
        raise StageError(f"the name of the copy on {self.node} is in use")

    def replace(self):
        """End this user's keeper that works on this node, and work in its place. Raises StageError."""
        deadline = time.monotonic() + YIELD_SECONDS
        while self.claim is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # it has ended
                kill(listener(self.working), signal.SIGTERM)
            self.claim = bind(self.working) or time.sleep(0.05)
        if self.claim is None:
            raise StageError(f"the process with an older copy on {self.node} did not end")
        self.announce()

    def ask(self, seconds=None):
        """The next request of the front, None if there is none after `seconds`. Raises ClosedError."""
        request = self.channel.receive(seconds)
        if request is not None and "end" in request:
            raise ClosedError("the front gives up")
        return request

    @property
    def is_venv(self):
        """Whether the file is a packed venv, and not an image, which Apptainer opens by its name."""
        return "PYTORCH_PACKED" in self.item["variables"]

    def prepare(self, tells):
        """Report to the front, and make the directory that it chooses."""
        room = rooms(candidates(os.environ), is_chosen=bool(os.environ.get(DIRECTORY)))
        self.channel.send(token=self.token, node=self.node, room=room, port=self.server.port, size=world_size())
        request = self.ask()
        self.item, directory = request["item"], request["make"]
        if self.listener is None:
            self.channel.send(busy=self.node, path=ask(service(os.environ, os.environ[FILE]), BUSY_SECONDS) or "")
            self.ask()  # only for its place, as another node has lost its copy
            self.replace()
        os.write(tells, directory.encode())
        os.close(tells)
        self.lock = make(directory)
        self.directory = directory
        self.channel.send(made=directory)

    def fill(self):
        """Fill the file as the front asks for, and verify it; along the tree, while it arrives."""
        part = os.path.join(self.directory, PART)
        request, file = self.await_copy(part)
        verification = None
        if request.get("fetch"):
            file = self.create(part)
            verification = ThreadPoolExecutor(1).submit(checksum, file, self.server.await_more)
            fetch(request["fetch"], file, self.item["size"], self.server, token=self.token)
        elif file is None:
            file = os.open(part, os.O_RDONLY | os.O_NOFOLLOW)
        began = time.monotonic()
        found = verification.result() if verification else checksum(file)
        if found != self.item["sha256"]:
            self.result = DAMAGED
            self.channel.send(found=found, node=self.node)
            self.ask()
        self.result = self.use_venv(file) if self.is_venv else self.name_image(part)
        self.channel.send(ready=self.result, seconds=time.monotonic() - began)
        self.ask()
        if self.result.startswith(self.directory):  # used by its name; no other node reads from the descriptor now
            os.close(file)

    def await_copy(self, part):
        """The next request of the front, and a descriptor of sbcast's file, if it was opened before that.

        A venv needs no name: squashfuse reads an open file. So its name goes as soon as sbcast has made the file, and
        the kernel removes the file with the last process that uses it, however that ends.
        """
        while not (self.is_venv and os.path.exists(part)):
            request = self.ask(0.01 if self.is_venv else None)
            if request is not None:
                return request, None
        file = os.open(part, os.O_RDONLY | os.O_NOFOLLOW)
        os.unlink(part)
        return self.ask(), file

    def create(self, part):
        """A descriptor of a new file in place of sbcast's, which is incomplete; without a name for a venv."""
        if os.path.lexists(part):
            os.unlink(part)
        file = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        if self.is_venv:
            os.unlink(part)
        return file

    def name_image(self, part):
        """Give a verified image its name; return the path."""
        path = os.path.join(self.directory, os.path.basename(self.item["path"]))
        os.chmod(part, 0o400)
        os.rename(part, path)
        return path

    def use_venv(self, file):
        """The path of a verified venv, without a name; where nothing can mount it, of a directory with its files."""
        if os.path.exists(os.path.join(self.directory, PART)):
            os.unlink(os.path.join(self.directory, PART))
        path = f"/proc/{os.getpid()}/fd/{file}"
        tree = os.path.join(self.directory, "tree")
        if not is_mountable(path, self.item["root"]) and unpack(path, tree):
            return tree
        remove(self.directory)
        return path

    def linger(self):
        """Remove the directory, and tell the ranks of this node for a while that there is no copy."""
        if self.directory:
            remove(self.directory)
        self.server.end()  # the next node's keeper removes its directory too
        self.channel.close()
        if self.listener is None:
            return
        self.claim.close()
        deadline = time.monotonic() + LINGER_SECONDS
        while time.monotonic() < deadline and not is_announced(self.working):
            if ready([self.listener], 0.1):
                answer(self.listener, self.result if self.result == DAMAGED else "")

    def serve(self):
        """Answer the ranks of this node until the job ends; without Slurm, until the front ends."""
        watched = [self.listener, self.channel]
        while True:
            for end in ready(watched, None):
                if end is self.listener:
                    answer(self.listener, self.result)
                    continue
                try:
                    self.ask()
                except ClosedError:
                    # Slurm ends this step with the job, other launchers may not
                    if not os.environ.get("SLURM_STEP_ID"):
                        return
                    watched.remove(self.channel)


def world_size():
    """The number of keepers, as their launcher counts them."""
    for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PALS_SIZE", "FLUX_JOB_SIZE"):
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return 1


def is_mountable(path, root):
    """Whether commands can mount this file on this node; a child tries it."""
    child = os.fork()
    if child == 0:
        try:
            mount(path, root)
            os._exit(0)
        except (NotMountedError, OSError):
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def unpack(path, target):
    """Unpack a squashfs file to a new directory; return whether this was possible."""
    program = shutil.which("unsquashfs")
    command = [program, "-no-progress", "-d", target, path]
    if program and subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
        return True
    remove(target)
    return False
