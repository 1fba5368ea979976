# SPDX-License-Identifier: GPL-2.0-only
"""
Requirements locks: only packages with an exact version and hashes.
"""
import collections
import os
import re

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import read_file

# A line of a lock. It has no hash if no hash of the wheel is published; wheels.py handles that case.
PIN = re.compile(r'(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)'
                 r'(?P<hashes>( --hash=sha256:[0-9a-f]{64})*)')

# Comment of a lock with the machines that it has wheels for: hashes do not show them.
MACHINES = re.compile(r'^# machines:(.*)$', re.MULTILINE)

# Other lines that pip accepts, by their form: options download from elsewhere, or run code of the package.
REFUSED = [(r'-|.* --(?!hash=)', "an option"), (r'.*(://|@)|[./]', "a URL or a path"), (r'.*\[', "an extra"),
           (r'.*;', "a marker"), (r'', "not one exact version with SHA-256 hashes")]


class Pin(collections.namedtuple('Pin', 'line name version hashes')):
    """One package of a lock: line number, name, version, and the SHA-256 of its wheels."""

    def __str__(self):
        return '%s==%s' % (self.name, self.version)

    @property
    def distribution(self):
        """Name and version as in file names of wheels."""
        return distribution(self.name, self.version)


def canonical_name(name):
    """A package's name as indexes compare it (PEP 503)."""
    return re.sub(r'[-_.]+', '-', name).lower()


def distribution(name, version):
    """Name and version of a package, as in file names of wheels (PEP 427 and PEP 503)."""
    return re.sub(r'[-_.]+', '_', name).lower(), version.lower()


def read_lock(path):
    """The pins of a lock; EasyBuildError with the line of anything but pins, comments and blank lines."""
    with open(path, 'rb') as file:
        content = file.read()
    try:
        lines = content.decode('utf-8-sig').splitlines()
    except UnicodeDecodeError as error:
        raise EasyBuildError("%s: invalid UTF-8 at byte %d. Convert the lock.", path, error.start) from error
    pins, beginning = {}, ''
    for number, line in enumerate(lines, 1):
        text = re.sub(r'(^|\s)#.*', '', line)
        beginning += text[:-1] + ' ' if text.endswith('\\') else text
        if text.endswith('\\') and number < len(lines):
            continue
        requirement, beginning = ' '.join(beginning.split()), ''
        if not requirement:
            continue
        found = PIN.fullmatch(requirement)
        if not found:
            what = next(what for form, what in REFUSED if re.match(form, requirement))
            raise EasyBuildError("%s: line %d: `%s` is %s. A lock has only lines `name==version "
                                 "--hash=sha256:<hash>`; `pip hash <wheel>` prints the hash.",
                                 path, number, requirement, what)
        pin = Pin(number, found['name'], found['version'], re.findall('[0-9a-f]{64}', found['hashes']))
        first = pins.setdefault(pin.distribution[0], pin)
        if first is not pin:
            raise EasyBuildError("%s: line %d: %s is in line %d already. Remove one of them.",
                                 path, number, pin.name, first.line)
    return list(pins.values())


def read_constraints(path):
    """Versions by the canonical names of packages, from a file with lines `name==version`; empty without the file."""
    if not os.path.exists(path):
        return {}
    found = (PIN.fullmatch(line.strip()) for line in read_file(path).splitlines())
    return {canonical_name(pin['name']): pin['version'] for pin in found if pin}


def machines_of(path):
    """Machines (`uname -m`) that a lock has wheels for, from its line `# machines: x86_64 aarch64`; None without it."""
    with open(path, encoding='utf-8', errors='replace') as file:
        found = MACHINES.search(file.read())
    return found[1].split() if found else None


def requirements(pins):
    """The text of a requirements file for pip."""
    return ''.join(' '.join([str(pin)] + ['--hash=sha256:' + value for value in pin.hashes]) + '\n' for pin in pins)
