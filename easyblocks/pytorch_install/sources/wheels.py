##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Python wheels that a requirements lock names, fetched and verified in EasyBuild's fetch step.
"""
import os
import platform
import re
import sys
import tempfile
from typing import NamedTuple

from easybuild.tools.build_log import EasyBuildError, print_msg, print_warning
from easybuild.tools.filetools import CHECKSUM_TYPE_SHA256, compute_checksum, write_file

from pytorch_install.runtime import run_command
from pytorch_install.sources.directories import (
    make_directory,
    protect,
    reason_for_distrust,
    require_trust,
    writable_directory,
)
from pytorch_install.sources.downloads import watched
from pytorch_install.sources.requirements import distribution, read_lock, requirements

# Platform tags of wheels, from the oldest to the newest glibc (PEP 600); `linux` was that of torch for ROCm.
MANYLINUX = (['linux', 'manylinux1', 'manylinux2010', 'manylinux2014']
             + ['manylinux_2_%d' % minor for minor in range(5, 29)])

# pip's settings for other installations, of the user or of a loaded module.
FOREIGN = ['PIP_CONSTRAINT', 'PIP_BUILD_CONSTRAINT', 'PIP_REQUIREMENT', 'PIP_REQUIRE_HASHES']


class Wheels(NamedTuple):
    """Wheels of one lock: the path of a requirements file for pip, with the hash of each, and their directory."""

    requirements: str
    directory: str


def fetch_wheels(lock, directories, python_version, index=None):
    """
    Download the wheels that a lock names and verify their hashes, unless one of the directories has them; return them.

    :param lock: path of the requirements lock
    :param directories: where wheels may be; downloads go to the first that is writable
    :param python_version: Python (<major>.<minor>) that the wheels must fit
    :param index: package index to try after those of pip's configuration
    """
    pins = read_lock(lock)
    unhashed = [pin for pin in pins if not pin.hashes]
    target = writable_directory(directories)
    for directory in directories:
        record = os.path.join(directory, os.path.basename(lock))
        if unhashed and directory == target:
            require_trust(directory, record)
        elif unhashed and reason_for_distrust(directory, record):
            print_warning("ignoring the hashes in %s: %s", record, reason_for_distrust(directory, record))
            continue
        complete = with_hashes(pins, recorded_hashes(record) if unhashed else {})
        if has_wheels(complete, directory, python_version):
            print_msg("wheels of %s: all in %s" % (os.path.basename(lock), directory))
            break
    else:
        directory = target
        if not directory:
            raise EasyBuildError("No writable directory for the wheels of %s: %s. Put a directory of your own "
                                 "first on EasyBuild's --sourcepath.", lock, ', '.join(directories))
        make_directory(directory)
        complete = fetch_missing(lock, pins, directory, directories, python_version, index)
    # pip reads this private copy: other users may be able to write to the record
    private = os.path.join(tempfile.mkdtemp(), os.path.basename(lock))
    write_file(private, requirements(complete))
    return Wheels(private, directory)


def without_foreign_settings():
    """Changes of the environment that unset FOREIGN; pip's configuration still sets the package index."""
    return dict.fromkeys(FOREIGN)


def fetch_missing(lock, pins, directory, directories, python_version, index):
    """Download the wheels of pins to a directory; return the pins, all with hashes."""
    fetch = Fetch(lock, directory, python_version, index)
    present = [path for path in directories if os.path.isdir(path)]
    # not the destination: pip looks there anyway, and fails on a wheel with another hash if it is also named here
    others = find_links(path for path in present if path != directory)
    if not all(pin.hashes for pin in pins):
        pins = with_recorded_hashes(fetch, pins)
    attempts = [("those fetched before", ['--no-index', *find_links(present)]),
                ("pip's own configuration", others)]
    if index:
        attempts.append((index, [*others, '--extra-index-url', index]))
    fetch.download(pins, directory, attempts, '--require-hashes')
    return pins


def find_links(directories):
    """Options of pip for directories with wheels."""
    return [option for path in directories for option in ('--find-links', path)]


class Fetch:
    """Downloads of wheels of one lock, for one Python."""

    def __init__(self, lock, directory, python_version, index):
        self.lock = lock
        self.directory = directory
        self.python_version = python_version
        self.index = index

    def download(self, pins, directory, attempts, *options):
        """Download the wheels of pins into a directory; `attempts` are origins, each with a name and pip's options."""
        for origin, where in attempts:
            print_msg("wheels of %s: trying %s..." % (os.path.basename(self.lock), origin))
            if self.pip(pins, directory, *where, *options).exit_code == 0:
                return
        # one by one: pip stops at the first that fails; wheels that were downloaded are kept
        for pin in pins:
            if not has_wheels([pin], directory, self.python_version):
                result = self.pip([pin], directory, *where, '--retries', '1', *options)
                if result.exit_code != 0:
                    origins = ', '.join(origin for origin, _ in attempts)
                    raise EasyBuildError("%s: line %d: %s. Correct the lock, or put the wheel into %s.", self.lock,
                                         pin.line, self.reason(pin, result.output, origins), self.directory)

    def pip(self, pins, directory, *options):
        """Run `pip download` for pins; return EasyBuild's result."""
        platforms = ['--platform=%s_%s' % (tag, platform.machine()) for tag in MANYLINUX]
        with tempfile.TemporaryDirectory() as work:
            path = os.path.join(work, os.path.basename(self.lock))
            write_file(path, requirements(pins))
            command = [sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps', '--only-binary=:all:',
                       '--python-version', self.python_version, *platforms, '--dest', directory, '-r', path, *options]
            with watched([work], 'wheels of %s' % os.path.basename(self.lock), silence=False) as watch:
                result = run_command(command, {**without_foreign_settings(), 'TMPDIR': work}, fail_on_error=False,
                                     hidden=True)
            if watch.stalled:
                raise EasyBuildError("%s: the package index is too slow: %s. Try again later, or from another index.",
                                     self.lock, watch.stalled)
            return result

    def reason(self, pin, output, origins):
        """Why pip could not download a pin, from its output."""
        got = re.findall(r'Got\s+([0-9a-f]{64})', output)
        unreachable = re.findall(r"connection broken by '(.*)'", output)
        if got:
            return "the wheel of %s has the SHA-256 %s, not that of the lock" % (pin, got[0])
        if 'No matching distribution' in output:
            found = re.findall(r'\(from versions: ([^)]*)\)', output)
            there = ", which has %s" % ', '.join(found[0].split(', ')[-5:]) if found and found[0] != 'none' else ''
            # without the name of pip's object
            failure = "; not reached: %s" % re.sub(r".*<[^>]*>: |'\)$", '', unreachable[0]) if unreachable else ''
            return "no wheel of %s for Python %s on %s found (%s%s%s)" % (
                pin, self.python_version, platform.machine(), origins, there, failure)
        lines = [line for line in output.splitlines() if 'ERROR' in line] or output.splitlines() or ["no output"]
        return "pip of %s (20.3 or newer is needed) could not fetch %s: %s" % (
            sys.executable, pin, re.sub(r'^ERROR:\s*', '', lines[-1].strip()))


def with_recorded_hashes(fetch, pins):
    """
    The pins, those without a hash with the hash of the wheel that the first fetch downloaded; it is recorded.

    At the first fetch, pip compares with the hash of the index; afterwards with the recorded one.
    """
    record = os.path.join(fetch.directory, os.path.basename(fetch.lock))
    pins = with_hashes(pins, recorded_hashes(record))
    missing = [pin for pin in pins if not pin.hashes]
    if not missing:
        return pins
    names = ', '.join(map(str, missing[:3])) + (' and %d more' % (len(missing) - 3) if missing[3:] else '')
    if not fetch.index:
        raise EasyBuildError("%s: line %d: no hash of %s. Add --hash=sha256:<hash>, or set 'wheel_index' in the recipe "
                             "to the index that is trusted for them.", fetch.lock, missing[0].line, names)
    hashes = {}
    with tempfile.TemporaryDirectory(dir=fetch.directory) as new:
        # only from that index: another one may have a different file of the same name and version
        attempts = [(fetch.index, ['--index-url', fetch.index])]
        fetch.download(missing, new, attempts)
        for name in [name for name in os.listdir(new) if name.endswith('.whl')]:
            path = os.path.join(new, name)
            hashes[distribution(*name.split('-')[:2])] = [compute_checksum(path, CHECKSUM_TYPE_SHA256)]
            os.replace(path, os.path.join(fetch.directory, name))
        pins = with_hashes(pins, hashes)
        write_file(os.path.join(new, 'record'), requirements(pins))
        protect(os.path.join(new, 'record'))
        os.replace(os.path.join(new, 'record'), record)
    print_msg("%s has no hash of %s: recorded in %s; later fetches must match"
              % (os.path.basename(fetch.lock), names, record))
    return pins


def recorded_hashes(record):
    """Hashes that an earlier fetch recorded, by name and version."""
    return {pin.distribution: pin.hashes for pin in read_lock(record)} if os.path.exists(record) else {}


def with_hashes(pins, hashes):
    """The pins, those without hashes with the given ones."""
    return [pin if pin.hashes else pin._replace(hashes=hashes.get(pin.distribution, [])) for pin in pins]


def has_wheels(pins, directory, python_version):
    """Whether a directory has a wheel for every pin, hashes verified; pip would take seconds for that."""
    wheels = {}
    for name in os.listdir(directory) if os.path.isdir(directory) else []:
        fields = name.split('-')
        if name.endswith('.whl') and len(fields) >= 5:
            wheels.setdefault(distribution(*fields[:2]), []).append(name)
    for pin in pins:
        for name in wheels.get(pin.distribution, []):
            # a lock has a hash for each machine; without a choice, pip decides whether the wheel fits this Python
            if (fits(name, None if len(pin.hashes) == 1 else python_version)
                    and compute_checksum(os.path.join(directory, name), CHECKSUM_TYPE_SHA256) in pin.hashes):
                break
        else:
            return False
    return True


def fits(wheel, python_version=None):
    """Whether a wheel is for this machine and, if given, for a version of Python; False if only pip can decide."""
    pythons, abi, systems = wheel[:-len('.whl')].split('-')[-3:]
    if not any(system == 'any' or system.endswith('_' + platform.machine()) for system in systems.split('.')):
        return False
    if not python_version:
        return True
    minor = int(python_version.partition('.')[2])
    # wheels of the stable ABI fit their Python and all later ones (PEP 425)
    minors = range(2, minor + 1) if 'abi3' in abi.split('.') else [minor]
    return bool({'py3', *('cp3%d' % number for number in minors)} & set(pythons.split('.')))
