##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
A base image made of the distribution's packages, for definition files that ask for one.
"""
import os

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import mkdir, which, write_file

from pytorch_install.runtime import run_command


def make_base(release, packages, directory):
    """Make a Debian release with some packages as a directory tree below `directory`; return its path."""
    if not which('mmdebstrap'):
        raise EasyBuildError("mmdebstrap is not on PATH, and the base image is made with it: install that package")
    base, archive = os.path.join(directory, 'base'), os.path.join(directory, 'base.tar')
    arguments = ['--variant=minbase', '--include=' + ','.join(packages), release, archive]
    sources = host_archives(release)
    if sources:
        listing = os.path.join(directory, 'sources.list')
        write_file(listing, '\n'.join(sources) + '\n')
        arguments.append(listing)
    # an ordinary user's mmdebstrap works under subordinate ids, which EasyBuild's private TMPDIR shuts out
    run_command(['mmdebstrap', *arguments], {'TMPDIR': None}, work_dir=directory)
    mkdir(base)
    # owned by this user and without device files, which an ordinary user may not make
    run_command(['tar', '--extract', '--no-same-owner', '--exclude', './dev/*', '--file', archive, '--directory', base])
    return base


def host_archives(release):
    """This host's own archives of the release as apt source lines; empty if it runs another release."""
    suites = [release, release + '-updates', release + '-security']
    if not which('apt-get'):
        return []
    result = run_command(['apt-get', 'indextargets', '--format', '$(REPO_URI) $(RELEASE) $(COMPONENT)',
                          'Created-By: Packages'], fail_on_error=False, hidden=True)
    targets = [line.split() for line in result.output.splitlines()] if result.exit_code == 0 else []
    return ['deb %s' % ' '.join(target) for target in targets
            if len(target) == 3 and target[1] in suites and target[2] == 'main']
