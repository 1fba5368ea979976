# SPDX-License-Identifier: GPL-2.0-only
"""
What the PyTorch easyblocks read in locks besides the pins: machines, and constraints of an installed image.
"""
import os
import re

from easybuild.easyblocks.generic.lockedvenv import PIN
from easybuild.tools.filetools import read_file

# Comment of a lock with the machines that it has wheels for: hashes do not show them.
MACHINES = re.compile(r'^# machines:(.*)$', re.MULTILINE)


def canonical_name(name):
    """A package's name as indexes compare it (PEP 503)."""
    return re.sub(r'[-_.]+', '-', name).lower()


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
