##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
The process that holds EasyBuild's lock on an installation directory, and cleaning up after a holder that was killed.

EasyBuild's lock is a directory, and a killed `eb` leaves it behind. The holder writes its identity into it. If that
process is certainly dead, the lock is removed, and the processes that it started are ended; otherwise the error has
the remedy.
"""
import contextlib
import datetime
import fcntl
import json
import os
import pwd
import signal
import socket
import sys
import time

from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import build_option
from easybuild.tools.filetools import find_backup_name_candidate, remove_dir, write_file
from easybuild.tools.utilities import shell_quote, time2str

# Environment variable of every process that an installation starts: identifies the `eb`.
MARK = 'PYTORCH_INSTALLED_BY'

# Seconds to wait for killed processes to end.
PATIENCE = 10

# Seconds to wait for another process that removes a stale lock, which may take it PATIENCE.
REMOVAL = 3 * PATIENCE


def await_lock(lock, module):
    """
    Return when the lock is free; wait for a live holder for at most --wait-on-lock-limit.

    :param lock: path of EasyBuild's lock
    :param module: name of the module, for messages
    """
    limit, interval = build_option('wait_on_lock_limit'), build_option('wait_on_lock_interval')
    start, stale_since = time.time(), None
    while os.path.isdir(lock):
        holder = read_holder(lock)
        if holder and is_dead(holder):
            stale_since = stale_since or time.time()
            if not remove_stale_lock(lock, holder) and time.time() - stale_since > REMOVAL:
                raise EasyBuildError("%s, which was killed, left a lock that another process has been removing for %d "
                                     "seconds. End that process, or rm -r %s",
                                     name_holder(holder, lock), REMOVAL, shell_quote(lock))
        elif limit == -1 or time.time() - start < limit:
            print_msg("%s is being installed by %s, waiting %d seconds..."
                      % (module, name_holder(holder, lock), interval))
            sys.stdout.flush()  # into a job's output too
            time.sleep(interval)
        else:
            raise EasyBuildError("%s is being installed by %s. Wait until it is installed, or let `eb` wait with "
                                 "--wait-on-lock-limit=-1. If that process no longer runs: rm -r %s",
                                 module, name_holder(holder, lock), shell_quote(lock))


def hold_lock(lock):
    """Write this process into a lock, and mark the processes that it starts."""
    holder = describe(os.getpid())
    os.environ[MARK] = mark(holder)
    write_file(os.path.join(lock, 'holder.json'), json.dumps(holder))


def describe(pid):
    """Identity of a process (boot, PID and start time), and its host and user for messages."""
    return {
        'host': socket.gethostname(),
        'boot': read_boot_id(),
        'pid': pid,
        'started': start_time(pid),
        'uid': os.getuid(),
        'user': pwd.getpwuid(os.getuid()).pw_name,
    }


def read_holder(lock):
    """The holder of a lock; None if the lock does not identify it."""
    try:
        with open(os.path.join(lock, 'holder.json')) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def name_holder(holder, lock):
    """A holder for messages, with the age of its lock."""
    try:
        age = ', for ' + time2str(datetime.timedelta(seconds=max(0, int(time.time() - os.stat(lock).st_mtime))))
    except FileNotFoundError:
        age = ''  # the lock is gone by now
    if holder is None:
        return 'an unidentified `eb`%s' % age
    return 'process %(pid)d of %(user)s on %(host)s' % holder + age


def read_boot_id():
    """Identity of this boot of the kernel, and of the namespace of process ids."""
    with open('/proc/sys/kernel/random/boot_id') as file:
        return '%s %s' % (file.read().strip(), os.readlink('/proc/self/ns/pid'))


def start_time(pid):
    """Start time of a process in ticks since boot; None if there is no such process, or it is a zombie."""
    try:
        with open('/proc/%d/stat' % pid) as file:
            # after the name, which may have blanks and parentheses in it: proc(5)
            fields = file.read().rpartition(')')[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[19]) if fields[0] not in 'ZX' else None


def is_dead(holder):
    """Whether a process is certainly dead: on its own host, asked by a user who can see it."""
    return (holder['boot'] == read_boot_id() and os.getuid() in (0, holder['uid'])
            and start_time(holder['pid']) != holder['started'])


def mark(holder):
    """The value of MARK for a holder."""
    return '%(boot)s %(pid)d %(started)d' % holder


def remove_stale_lock(lock, holder):
    """End the processes of a dead holder and remove its lock; return False if another process is doing so."""
    try:
        # private: a user who can open a file can lock it
        guard = os.open(os.path.join(lock, 'removal'), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:
        return True  # another process has removed it
    except OSError as error:
        raise EasyBuildError("%s, which was killed, left a lock that cannot be removed (%s). Run: rm -r %s",
                             name_holder(holder, lock), error, shell_quote(lock)) from error
    try:
        try:
            # a local lock suffices: only processes on the holder's host get here; it ends with this process (flock(2))
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(1)  # another process removes it
            return False
        if read_holder(lock) != holder:
            return True
        ended = end_orphans(holder)
        print_msg("removing the lock of %s, which was killed%s" % (
            name_holder(holder, lock), ', and %d processes that it had started' % ended if ended else ''))
        # atomically, to a name that no `eb` waits for: NFS keeps a file that is open
        stale = find_backup_name_candidate(lock)
        os.rename(lock, stale)
    finally:
        os.close(guard)
    remove_dir(stale)
    return True


def end_orphans(holder):
    """Kill the processes of a dead holder, which may still write to the same directory; return how many."""
    killed = set()
    deadline = time.time() + PATIENCE
    while time.time() < deadline:
        orphans = find_marked(mark(holder))
        if not orphans:
            break
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(orphans)
        time.sleep(0.1)
    else:
        raise EasyBuildError("Processes that a killed `eb` started do not end: %s. End them, then run `eb` again",
                             ' '.join(map(str, sorted(orphans))))
    return len(killed)


def find_marked(value):
    """Process ids of live processes with this MARK in their environment."""
    wanted = ('%s=%s' % (MARK, value)).encode()
    found = []
    for name in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open('/proc/%s/environ' % name, 'rb') as file:
                if wanted in file.read().split(b'\0') and start_time(int(name)) is not None:
                    found.append(int(name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended, or is another user's
    return found
