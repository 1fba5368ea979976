##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Who holds EasyBuild's lock on an installation directory, and what a holder that was killed left; called by
pytorchmodule.py.

EasyBuild's lock is a directory, which a killed `eb` leaves behind. The holder notes in it who it is: where that process
is dead for certain, the lock is removed together with processes that it had started; else the error says what to do.
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

# In the environment of all that an installation starts: whose it is.
MARK = 'PYTORCH_INSTALLED_BY'

# Seconds that killed processes get to be gone.
PATIENCE = 10

# Seconds that another process gets to remove a stale lock, which may take it PATIENCE.
REMOVAL = 3 * PATIENCE


def await_lock(lock, module):
    """
    Return when nobody holds the lock; a holder that is alive is waited for as long as --wait-on-lock-limit says.

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
                                     "seconds: end that process, or rm -r %s",
                                     who(holder, lock), REMOVAL, shell_quote(lock))
        elif limit == -1 or time.time() - start < limit:
            print_msg("%s is being installed by %s, waiting %d seconds..." % (module, who(holder, lock), interval))
            sys.stdout.flush()  # into a job's output too
            time.sleep(interval)
        else:
            raise EasyBuildError("%s is being installed by %s: wait until that is done, or let `eb` wait with "
                                 "--wait-on-lock-limit=-1; if it is not running any more: rm -r %s",
                                 module, who(holder, lock), shell_quote(lock))


def hold_lock(lock):
    """Note in a lock that this process holds it, and mark what this process will start."""
    holder = describe(os.getpid())
    os.environ[MARK] = mark(holder)
    write_file(os.path.join(lock, 'holder.json'), json.dumps(holder))


def describe(pid):
    """What tells a process from all others, and what people want to know of it."""
    return {
        'host': socket.gethostname(),
        'boot': boot(),
        'pid': pid,
        'started': started(pid),
        'uid': os.getuid(),
        'user': pwd.getpwuid(os.getuid()).pw_name,
    }


def read_holder(lock):
    """Who holds a lock, or None where that was not noted."""
    try:
        with open(os.path.join(lock, 'holder.json')) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def who(holder, lock):
    """The holder in words, with the age of its lock."""
    try:
        age = ', for ' + time2str(datetime.timedelta(seconds=max(0, int(time.time() - os.stat(lock).st_mtime))))
    except FileNotFoundError:
        age = ''  # done meanwhile
    if holder is None:
        return 'another `eb`, which left no note who it is%s' % age
    return 'process %(pid)d of %(user)s on %(host)s' % holder + age


def boot():
    """This kernel since it was booted, with the namespace that process ids are counted in."""
    with open('/proc/sys/kernel/random/boot_id') as file:
        return '%s %s' % (file.read().strip(), os.readlink('/proc/self/ns/pid'))


def started(pid):
    """When a process was started, in ticks since boot; None where there is no such process, or only its entry."""
    try:
        with open('/proc/%d/stat' % pid) as file:
            # after the name, which may have blanks and parentheses in it: proc(5)
            fields = file.read().rpartition(')')[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[19]) if fields[0] not in 'ZX' else None


def is_dead(holder):
    """Whether it is certain that a process is gone: seen from its own host, by a user who would see it."""
    return (holder['boot'] == boot() and os.getuid() in (0, holder['uid'])
            and started(holder['pid']) != holder['started'])


def mark(holder):
    """The value of MARK for a holder."""
    return '%(boot)s %(pid)d %(started)d' % holder


def remove_stale_lock(lock, holder):
    """End what a dead holder had started, then remove its lock; return False if another process is about to do so."""
    try:
        # of this user alone: whoever may open a file may lock it
        guard = os.open(os.path.join(lock, 'removal'), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:
        return True  # another process has removed it
    except OSError as error:
        raise EasyBuildError("%s, which was killed, left a lock that cannot be removed (%s): rm -r %s",
                             who(holder, lock), error, shell_quote(lock)) from error
    try:
        try:
            # all that can judge the holder are on its host; gone with this process (flock(2))
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(1)  # another process is at it
            return False
        if read_holder(lock) != holder:
            return True
        ended = end_orphans(holder)
        print_msg("removing the lock of %s, which was killed%s" % (
            who(holder, lock), ', and %d processes that it had started' % ended if ended else ''))
        # at once, and under a name that no `eb` waits for: NFS keeps a file that is open
        stale = find_backup_name_candidate(lock)
        os.rename(lock, stale)
    finally:
        os.close(guard)
    remove_dir(stale)
    return True


def end_orphans(holder):
    """Kill what a dead holder had started, as it may still write where the next one will; return how many."""
    killed = set()
    deadline = time.time() + PATIENCE
    while time.time() < deadline:
        orphans = marked(mark(holder))
        if not orphans:
            break
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(orphans)
        time.sleep(0.1)
    else:
        raise EasyBuildError("Processes that a killed `eb` had started do not end: %s; end them first",
                             ' '.join(map(str, sorted(orphans))))
    return len(killed)


def marked(value):
    """Process ids of live processes with this MARK in their environment."""
    wanted = ('%s=%s' % (MARK, value)).encode()
    found = []
    for name in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open('/proc/%s/environ' % name, 'rb') as file:
                if wanted in file.read().split(b'\0') and started(int(name)) is not None:
                    found.append(int(name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or somebody else's
    return found
