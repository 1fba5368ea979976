##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Downloads that show progress, and fail when too little arrives.

EasyBuild and pip limit the time between two bytes, and Apptainer has no limit: all of them would wait forever for a
server that sends one byte a second.
"""
import collections
import contextlib
import multiprocessing
import os
import signal
import ssl
import sys
import threading
import time
from urllib.request import Request, urlopen

from easybuild.tools.build_log import print_msg
from easybuild.tools.config import build_option
from easybuild.tools.filetools import remove_file

# Seconds between two progress messages.
PROGRESS = 10

# Bytes a second below which a download fails.
LEAST_RATE = 1000

# Share of one core above which a command counts as busy: unpacking, packing.
BUSY = 0.1

# Seconds that commands have to clean up.
GRACE = 5


def patience():
    """Seconds that a download may be too slow: six times EasyBuild's --download-timeout, by default a minute."""
    return 6 * build_option('download_timeout')


class Watch:
    """
    Growth of directories or files while child processes of this one download to them.

    :param paths: where the data arrives, then where the processes unpack and copy it
    :param what: what is downloaded, for messages
    :param silence: whether no data at all is too little; not if the program has a time-out of its own
    """

    def __init__(self, paths, what, silence=True):
        self.paths = paths
        self.what = what
        self.silence = silence
        self.limit = patience()
        self.received = 0
        self.total = None  # object with the size as `value`, if it is known
        self.stalled = None  # why the download was ended
        self.files = []  # names of the files in the first path when it ended
        self.ended = threading.Event()

    def run(self):
        """Watch until `ended`; if too little arrives, end the download."""
        start = size_of(self.paths[0])
        samples = collections.deque([(time.monotonic(), sum(map(size_of, self.paths)), cpu_seconds())])
        reported, shown = samples[0][0], 0
        while not self.ended.wait(min(PROGRESS, self.limit / 10)):
            now, sizes, cpu = time.monotonic(), [size_of(path) for path in self.paths], cpu_seconds()
            self.received = sizes[0] - start
            if now - reported >= PROGRESS:
                if self.received != shown:
                    self.report()
                reported, shown = now, self.received
            samples.append((now, sum(sizes), cpu))
            while len(samples) > 2 and now - samples[1][0] >= self.limit:
                samples.popleft()
            before, size, used = samples[0]
            grown = sum(sizes) - size
            # a process that has ended since takes nothing away from the others
            busy = sum(seconds - used.get(pid, 0) for pid, seconds in cpu.items())
            if (now - before >= self.limit and grown < LEAST_RATE * self.limit and busy < BUSY * self.limit
                    and (grown > 0 or self.silence)):
                self.stalled = ("less than %d kB/s arrived for %g s, after %.1f MB"
                                % (LEAST_RATE // 1000, self.limit, self.received / 1e6))
                self.files = [name for _, _, names in os.walk(self.paths[0]) for name in names]
                end_processes(descendants())
                return

    def report(self):
        """Print how much has arrived."""
        total = self.total.value if self.total else 0
        share = " of %d MB (%d %%)" % (total // 1000000, 100 * self.received // total) if total else " MB"
        print_msg("%s: %d%s fetched so far" % (self.what, self.received // 1000000, share))
        sys.stdout.flush()  # into a job's output too


@contextlib.contextmanager
def watched(paths, what, silence=True):
    """Context in which downloads of child processes to paths are watched; yields the Watch."""
    watch = Watch(paths, what, silence)
    thread = threading.Thread(target=watch.run, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.ended.set()
        thread.join()


def fetch_url(url, path):
    """Download a file, which appears when it is complete; OSError with the reason on failure."""
    part = '%s.%d.part' % (path, os.getpid())
    context = multiprocessing.get_context('fork')  # with EasyBuild's configuration
    total, (reader, writer) = context.Value('q', 0), context.Pipe(duplex=False)
    process = context.Process(target=receive, args=(url, part, total, writer), daemon=True)
    process.start()
    try:
        writer.close()
        with watched([part], os.path.basename(path)) as watch:
            watch.total = total
            process.join()
        if watch.stalled:
            raise OSError(watch.stalled)
        if process.exitcode != 0:
            raise OSError(reader.recv() if reader.poll() else "the download failed with status %d" % process.exitcode)
        os.replace(part, path)
    finally:
        if process.is_alive():
            process.kill()
            process.join()
        if os.path.exists(part):
            remove_file(part)


def receive(url, part, total, errors):
    """Write a download to a file; runs in a process of its own, which can be killed when the server is slow."""
    try:
        # the user's option --insecure-download
        insecure = ssl._create_unverified_context() if build_option('insecure_download') else None  # noqa: S323
        request = Request(url, headers={'User-Agent': 'EasyBuild', 'Accept': '*/*'})  # noqa: S310 (the recipe's)
        timeout = build_option('download_timeout')
        with urlopen(request, timeout=timeout, context=insecure) as response, open(part, 'wb', buffering=0) as file:  # noqa: S310
            total.value = int(response.headers.get('Content-Length') or 0)
            for chunk in iter(lambda: response.read1(1 << 16), b''):
                file.write(chunk)
            if total.value and file.tell() != total.value:
                raise OSError("received %d of %d bytes" % (file.tell(), total.value))
    except Exception as error:  # whatever the error, the next mirror may have the file
        errors.send(str(error) or type(error).__name__)
        os._exit(1)
    os._exit(0)


def fetch_from_first(urls, path):
    """
    Download a file from the first URL that serves it fast enough.

    :return: the reasons if all of them failed, else None
    """
    failures = []
    for url in urls:
        print_msg("%s: fetching from %s" % (os.path.basename(path), url))
        try:
            fetch_url(url, path)
            return None
        except OSError as error:
            failures.append('%s: %s' % (url, error))
    return '; '.join(failures)


def size_of(path):
    """Bytes in a file, or in the files below a directory, which may change during the count."""
    total = 0
    for directory, _, names in os.walk(path) if os.path.isdir(path) else [(path, [], [''])]:
        for name in names:
            with contextlib.suppress(OSError):
                total += os.path.getsize(os.path.join(directory, name) if name else path)
    return total


def statistics():
    """Parent and seconds of CPU time of all processes, by process id; see proc(5)."""
    found = {}
    tick = os.sysconf('SC_CLK_TCK')
    for name in filter(str.isdigit, os.listdir('/proc')):
        with contextlib.suppress(OSError), open('/proc/%s/stat' % name) as file:
            # after the name, which may contain blanks and parentheses
            fields = file.read().rpartition(')')[2].split()
            found[int(name)] = int(fields[1]), sum(map(int, fields[11:15])) / tick
    return found


def descendants(processes=None):
    """Ids of this process's descendants among `processes`."""
    processes = processes or statistics()
    found, new = set(), {os.getpid()}
    while new:
        new = {pid for pid, (parent, _) in processes.items() if parent in new} - found
        found |= new
    return found


def cpu_seconds():
    """CPU time of each live descendant of this process, in seconds, by process id."""
    processes = statistics()
    return {pid: processes[pid][1] for pid in descendants(processes)}


def end_processes(pids):
    """Terminate processes; kill them after GRACE seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline and pids & set(descendants()):
            time.sleep(0.1)
