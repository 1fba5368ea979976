# SPDX-License-Identifier: GPL-2.0-only
"""
A packed venv: the installation as one squashfs file in it, which runscripts/pytorch_packed.py mounts in its place.
"""
import os
import shlex

from easybuild.easyblocks.generic.containerimage import checksum_of, run_command
from easybuild.tools.filetools import remove_file

from pytorch_install.build_environment import write_record

# The packed file, and the record of its SHA-256, relative to the installation directory; runscripts/pytorch_stage reads
# the record.
PACKED = 'venv.squashfs'
RECORD = os.path.join('provenance', 'packed.json')

# A file at the root of the packed one, by which the commands recognize the mount (runscripts/packed.bash).
MARKER = '.packed'


def venv_commands(python_version):
    """Commands of the environment that bin/ offers, so that they run where the packed file is mounted."""
    return [name + version for name in ('python', 'pip') for version in ('', '3', python_version)]


def pack(installdir, mksquashfs_args, parallel):
    """Pack an installation into a file in it with a number of cores, and record the file's SHA-256."""
    path = os.path.join(installdir, PACKED)
    part = path + '.part'
    try:
        run_command(['mksquashfs', installdir, part, '-noappend', '-no-progress', '-no-xattrs', '-all-root',
                     '-processors', str(parallel or 1), *shlex.split(mksquashfs_args),
                     '-p', MARKER + ' f 444 0 0 true', '-e', PACKED, os.path.basename(part)], hidden=True)
        record = {'file': PACKED, 'sha256': checksum_of(part), 'size': os.path.getsize(part)}
        os.replace(part, path)
    finally:
        if os.path.exists(part):
            remove_file(part)
    write_record(record, installdir, RECORD)
