# SPDX-License-Identifier: GPL-2.0-only
"""
A base image made of the distribution's packages, for definition files that ask for one.
"""
import os

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import mkdir, which, write_file

from pytorch_install.runtime import run_command


def make_base(release, packages, directory):
    """Install a Debian release with some packages into a directory below `directory`; return its path."""
    if not which('mmdebstrap'):
        raise EasyBuildError("mmdebstrap not found on PATH: it makes the base image. Install that package")
    base, archive = os.path.join(directory, 'base'), os.path.join(directory, 'base.tar')
    arguments = ['--variant=minbase', '--include=' + ','.join(packages), release, archive]
    sources = host_archives(release)
    if sources:
        listing = os.path.join(directory, 'sources.list')
        write_file(listing, '\n'.join(sources) + '\n')
        arguments.append(listing)
    # for an ordinary user, mmdebstrap runs under subordinate ids, which cannot enter EasyBuild's private TMPDIR
    run_command(['mmdebstrap', *arguments], {'TMPDIR': None}, work_dir=directory)
    mkdir(base)
    # owned by this user, without device files, which an ordinary user cannot make
    run_command(['tar', '--extract', '--no-same-owner', '--exclude', './dev/*', '--file', archive, '--directory', base])
    return base


def host_archives(release):
    """This host's archives of the release, as lines of sources.list; empty if it runs another release."""
    suites = [release, release + '-updates', release + '-security']
    if not which('apt-get'):
        return []
    result = run_command(['apt-get', 'indextargets', '--format', '$(REPO_URI) $(RELEASE) $(COMPONENT)',
                          'Created-By: Packages'], fail_on_error=False, hidden=True)
    targets = [line.split() for line in result.output.splitlines()] if result.exit_code == 0 else []
    return ['deb %s' % ' '.join(target) for target in targets
            if len(target) == 3 and target[1] in suites and target[2] == 'main']
