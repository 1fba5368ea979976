# SPDX-License-Identifier: GPL-2.0-only
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
from easybuild.tools.filetools import CHECKSUM_TYPE_SHA256, compute_checksum, verify_checksum, write_file

from pytorch_install.runtime import run_command
from pytorch_install.sources.directories import make_directory, writable_directory
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
    unverified = [str(pin) for pin in pins if not pin.hashes]
    if unverified:
        verify_checksum(unverified[0], None)  # an error with --enforce-checksums
        print_warning("%s has no hash of %s: not verified", os.path.basename(lock), ', '.join(unverified))
    for directory in directories:
        if has_wheels(pins, directory, python_version):
            print_msg("wheels of %s: all in %s" % (os.path.basename(lock), directory))
            break
    else:
        directory = writable_directory(directories)
        if not directory:
            raise EasyBuildError("No writable directory for the wheels of %s: %s. Put a directory of your own "
                                 "first on EasyBuild's --sourcepath.", lock, ', '.join(directories))
        make_directory(directory)
        fetch_missing(lock, pins, directory, directories, python_version, index)
    # pip compares again when it installs: this private copy has the hash of each wheel
    private = os.path.join(tempfile.mkdtemp(), os.path.basename(lock))
    write_file(private, requirements(with_hashes(pin, directory) for pin in pins))
    return Wheels(private, directory)


def without_foreign_settings():
    """Changes of the environment that unset FOREIGN; pip's configuration still sets the package index."""
    return dict.fromkeys(FOREIGN)


def fetch_missing(lock, pins, directory, directories, python_version, index):
    """Download the wheels of pins to a directory."""
    fetch = Fetch(lock, directory, python_version, index)
    present = [path for path in directories if os.path.isdir(path)]
    # not the destination: pip looks there anyway, and fails on a wheel with another hash if it is also named here
    others = find_links(path for path in present if path != directory)
    unhashed = [pin for pin in pins if not pin.hashes and not has_wheels([pin], directory, python_version)]
    if unhashed and not index:
        raise EasyBuildError("%s: line %d: no hash of %s. Add --hash=sha256:<hash>, or set 'wheel_index' in the recipe "
                             "to the index that is trusted for it.", lock, unhashed[0].line, unhashed[0])
    # only from that index: another one may have a different file of the same name and version
    fetch.download(unhashed, [(index, ['--index-url', index])])
    attempts = [("those fetched before", ['--no-index', *find_links(present)]),
                ("pip's own configuration", others)]
    if index:
        attempts.append((index, [*others, '--extra-index-url', index]))
    fetch.download([pin for pin in pins if pin.hashes], attempts, '--require-hashes')


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

    def download(self, pins, attempts, *options):
        """Download the wheels of pins; `attempts` are origins, each with a name and pip's options."""
        for origin, where in attempts if pins else []:
            print_msg("wheels of %s: trying %s..." % (os.path.basename(self.lock), origin))
            if self.pip(pins, *where, *options).exit_code == 0:
                return
        # one by one: pip stops at the first that fails; wheels that were downloaded are kept
        for pin in pins:
            if not has_wheels([pin], self.directory, self.python_version):
                result = self.pip([pin], *where, '--retries', '1', *options)
                if result.exit_code != 0:
                    origins = ', '.join(origin for origin, _ in attempts)
                    raise EasyBuildError("%s: line %d: %s. Correct the lock, or put the wheel into %s.", self.lock,
                                         pin.line, self.reason(pin, result.output, origins), self.directory)

    def pip(self, pins, *options):
        """Run `pip download` for pins; return EasyBuild's result."""
        platforms = ['--platform=%s_%s' % (tag, platform.machine()) for tag in MANYLINUX]
        with tempfile.TemporaryDirectory() as work:
            path = os.path.join(work, os.path.basename(self.lock))
            write_file(path, requirements(pins))
            command = [sys.executable, '-m', 'pip', 'download', '--no-deps', '--only-binary=:all:', '--python-version',
                       self.python_version, *platforms, '--dest', self.directory, '-r', path, *options]
            return run_command(command, without_foreign_settings(), fail_on_error=False, hidden=True)

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


def with_hashes(pin, directory):
    """The pin; if the lock has no hashes of it, with those of its wheels in the directory."""
    return pin if pin.hashes else pin._replace(hashes=list(map(sha256, wheels_of(pin, directory))))


def sha256(path):
    """SHA-256 of a file."""
    return compute_checksum(path, CHECKSUM_TYPE_SHA256)


def has_wheels(pins, directory, python_version):
    """Whether a directory has a wheel for every pin, with one of its hashes; pip would take seconds for that."""
    # a lock has a hash for each machine; without a choice, pip decides whether the wheel fits this Python
    return all(any(not pin.hashes or sha256(path) in pin.hashes
                   for path in wheels_of(pin, directory, None if len(pin.hashes) == 1 else python_version))
               for pin in pins)


def wheels_of(pin, directory, python_version=None):
    """Paths of the wheels in a directory that have a pin's name and version, and fit; see `fits`."""
    names = [name for name in os.listdir(directory) if name.endswith('.whl')] if os.path.isdir(directory) else []
    return [os.path.join(directory, name) for name in sorted(names) if distribution(*name.split('-')[:2])
            == pin.distribution and name.count('-') >= 4 and fits(name, python_version)]


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
