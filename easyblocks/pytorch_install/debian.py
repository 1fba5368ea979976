# SPDX-License-Identifier: GPL-2.0-only
"""
A Debian system as a directory: the base image of a definition file.
"""
import os

from easybuild.easyblocks.generic.containerimage import run_command
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import mkdir, read_file, which


def debian_base(release, packages, directory):
    """Install a Debian release with some packages into a directory below `directory`; return its path."""
    if not which('mmdebstrap'):
        raise EasyBuildError("mmdebstrap not found on PATH: it makes the base image. Install that package")
    base, archive = os.path.join(directory, 'base'), os.path.join(directory, 'base.tar')
    # this host's own archives, if they have the release
    archives = [path for path in ('/etc/apt/sources.list', '/etc/apt/sources.list.d/debian.sources')
                if os.path.exists(path) and release in read_file(path)]
    # for an ordinary user, mmdebstrap runs under subordinate ids, which cannot enter EasyBuild's private TMPDIR
    run_command(['mmdebstrap', '--variant=minbase', '--include=' + ','.join(packages), release, archive, *archives],
                {'TMPDIR': None}, work_dir=directory)
    mkdir(base)
    # owned by this user, without device files, which an ordinary user cannot make
    run_command(['tar', '--extract', '--no-same-owner', '--exclude', './dev/*', '--file', archive, '--directory', base])
    return base
