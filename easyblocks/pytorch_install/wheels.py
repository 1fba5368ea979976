##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Python wheels that a requirements lock names; called by pytorchmodule.py in EasyBuild's fetch step.
"""
import os
import platform
import re
import sys
import tempfile

from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.filetools import CHECKSUM_TYPE_SHA256, compute_checksum, mkdir, read_file, write_file
from easybuild.tools.run import run_shell_cmd
from easybuild.tools.utilities import shell_quote

# Oldest to newest glibc that wheels of the last years are tagged with (PEP 600), and none, as torch's for ROCm were.
MANYLINUX = (['linux', 'manylinux1', 'manylinux2010', 'manylinux2014']
             + ['manylinux_2_%d' % minor for minor in range(5, 29)])

# A requirement with its exact version, and its hashes, as locks have them: no option, no marker, no extra.
LOCKED = re.compile(r'(?P<name>[\w.-]+)==(?P<version>[^\s;]+)(?P<hashes>( --hash=sha256:[0-9a-f]{64})+)')

# The same, of which nobody has published a hash.
UNHASHED = re.compile(r'[\w.-]+==[^\s;]+')


def fetch_wheels(lock, directory, python_version, index=None):
    """
    Download the wheels that a lock names into a directory, hashes verified, unless they are there already.

    Return the path of the lock to install by: the given one, or one with the hashes that it lacks.

    :param lock: path of the requirements lock
    :param directory: where the wheels go
    :param python_version: Python (<major>.<minor>) that the wheels must fit
    :param index: package index to ask after those of pip's own configuration
    """
    mkdir(directory, parents=True)
    if any(UNHASHED.fullmatch(line) for line in read_file(lock).splitlines()):
        lock = with_recorded_hashes(lock, directory, python_version, index)
    if has_wheels(lock, directory, python_version):
        print_msg("wheels of %s: all in %s" % (os.path.basename(lock), directory))
    else:
        attempts = [('those fetched before', '--no-index --find-links %s' % shell_quote(directory)),
                    ("pip's own configuration", '')]
        if index:
            attempts.append((index, '--extra-index-url %s' % shell_quote(index)))
        download(lock, directory, python_version, attempts, '--require-hashes')
    return lock


def download(lock, directory, python_version, attempts, *options):
    """Download the wheels of a lock into a directory with pip; `attempts` are names and pip's options of places."""
    platforms = ['--platform %s_%s' % (tag, platform.machine()) for tag in MANYLINUX]
    command = ' '.join(['%s -m pip download --quiet --no-deps --only-binary=:all:' % shell_quote(sys.executable),
                        *options, '--python-version', python_version, *platforms,
                        '--dest', shell_quote(directory), '-r', shell_quote(lock)])
    for origin, where in attempts:
        print_msg("wheels of %s: trying %s..." % (os.path.basename(lock), origin))
        result = run_shell_cmd('%s %s' % (command, where), fail_on_error=False, hidden=True)
        if result.exit_code == 0:
            return
    errors = [line for line in result.output.splitlines() if 'ERROR' in line] or [result.output.strip()]
    raise EasyBuildError("Fetching the wheels that %s locks failed, also from %s: %s Try again, or put the wheels "
                         "into %s by hand; the pip of %s must be 20.3 or newer.",
                         lock, origin, errors[-1], directory, sys.executable)


def with_recorded_hashes(lock, directory, python_version, index):
    """
    Give the requirements without a hash that of the wheel that the first fetch got; return the path of that lock.

    Indexes say the hash of each file themselves, which pip compares; from then on it is the recorded one that counts.
    """
    record = os.path.join(directory, os.path.basename(lock))
    lines = read_file(lock).splitlines()
    unhashed = [line for line in lines if UNHASHED.fullmatch(line)]
    recorded = read_file(record).splitlines() if os.path.exists(record) else []
    hashed = {line.split()[0]: line for line in recorded if LOCKED.fullmatch(line)}
    missing = [line for line in unhashed if line not in hashed]
    if missing:
        if not index:
            raise EasyBuildError("%s has no hash of %s: add them, or name the index whose word counts as 'wheel_index'",
                                 lock, ', '.join(missing))
        # from that index alone: whoever has the name and the version at another one must not be believed
        attempts = [(index, '--index-url %s' % shell_quote(index))]
        with tempfile.TemporaryDirectory(dir=directory) as new:
            requirements = os.path.join(new, os.path.basename(lock))
            write_file(requirements, '\n'.join(missing) + '\n')
            download(requirements, new, python_version, attempts)
            for name in [name for name in os.listdir(new) if name.endswith('.whl')]:
                line = next(line for line in missing
                            if distribution(*line.split('==')) == distribution(*name.split('-')[:2]))
                hashed[line] = '%s --hash=sha256:%s' % (
                    line, compute_checksum(os.path.join(new, name), CHECKSUM_TYPE_SHA256))
                os.replace(os.path.join(new, name), os.path.join(directory, name))
        print_msg("%s has no hash of %s: noted in %s, and compared from now on"
                  % (os.path.basename(lock), ', '.join(missing), record))
    complete = [hashed[line] if line in unhashed else line for line in lines]
    if complete != recorded:
        write_file(record, '\n'.join(complete) + '\n')
    return record


def has_wheels(lock, directory, python_version):
    """
    Whether a directory has a wheel for every line of a lock, hashes verified; pip needs seconds to say so.

    A lock with anything else in it is left to pip: the answer is False.
    """
    text = re.sub(r'\\\n', ' ', read_file(lock))
    lines = [' '.join(line.partition('#')[0].split()) for line in text.splitlines()]
    requirements = [LOCKED.fullmatch(line) for line in lines if line]
    wheels = {}
    for name in os.listdir(directory):
        fields = name.split('-')
        if name.endswith('.whl') and len(fields) >= 5:
            wheels.setdefault(distribution(*fields[:2]), []).append(name)
    for requirement in requirements:
        if requirement is None:
            return False
        hashes = re.findall('[0-9a-f]{64}', requirement['hashes'])
        for name in wheels.get(distribution(requirement['name'], requirement['version']), []):
            path = os.path.join(directory, name)
            # the only file that the lock allows, or one of several that fits
            if ((len(hashes) == 1 or fits(name, python_version))
                    and compute_checksum(path, CHECKSUM_TYPE_SHA256) in hashes):
                break
        else:
            return False
    return True


def distribution(name, version):
    """Name and version of a package, as its wheels have them (PEP 427 and PEP 503)."""
    return re.sub(r'[-_.]+', '_', name).lower(), version.lower()


def fits(wheel, python_version):
    """Whether a wheel is for a version of Python on this machine; False where only pip can tell."""
    python, _, system = wheel[:-len('.whl')].split('-')[-3:]
    tags = {'cp' + python_version.replace('.', ''), 'py3'}
    return bool(tags & set(python.split('.'))) and (system == 'any' or system.endswith(platform.machine()))
