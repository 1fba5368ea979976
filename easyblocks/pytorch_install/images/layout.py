# SPDX-License-Identifier: GPL-2.0-only
"""
What every image that is built here has: directories for the module's binds, `run`, and the search path of shells.
"""
import hashlib
import os
import re
import shlex

from easybuild.tools.filetools import copy_file, mkdir, read_file, remove_file, write_file

from pytorch_install.programs.hold_packages import HOOK, LINE, OF_IMAGE

# A user's build on top of the image, with the module loaded, cannot make them.
MOUNT_POINTS = ('/runscripts', '/payload', '/user-software')

HERE = os.path.dirname(os.path.abspath(__file__))

# `singularity run` runs its arguments, or Python without any.
RUNSCRIPT = os.path.join(HERE, 'runscript.sh')

PROFILE = os.path.join(HERE, 'profile.sh')
IN_IMAGE = '/etc/profile.d/zz-start-path.sh'

# What Apptainer and Singularity make where there is no runscript prints this, and ends with status 0.
NO_RUNSCRIPT = 'There is no runscript defined for this container'

# Debian's bash reads it in interactive shells that are no login shells.
BASHRC = '/etc/bash.bashrc'


# Code for the image's Python: each Python that sees its torch keeps it when users install packages.
HOOK_CODE = ('import importlib.util as util, os; torch = util.find_spec("torch"); '
             'torch and open(os.path.join(os.path.dirname(os.path.dirname(torch.origin)), %r), "w").write(%r)'
             % (HOOK, LINE % OF_IMAGE))


# Identifies all of this: --rebuild makes an image again that was made with another layout.
LAYOUT = hashlib.sha256('\n'.join([
    HOOK_CODE, *MOUNT_POINTS, *(read_file(file) for file in (RUNSCRIPT, PROFILE))]).encode()).hexdigest()[:8]


def with_layout(definition):
    """Text of a definition file with this layout; its own runscript stays. Apptainer joins sections of one name."""
    lines = [definition.rstrip(), '', '%files', '    %s %s' % (PROFILE, IN_IMAGE), '', '%post',
             '    mkdir -p ' + ' '.join(MOUNT_POINTS),
             '    chmod 644 ' + IN_IMAGE,
             '    [ ! -f %s ] || echo ". %s" >> %s' % (BASHRC, IN_IMAGE, BASHRC),
             '    cd / && python3 -Ic %s || true' % shlex.quote(HOOK_CODE)]
    if not re.search(r'^%runscript\b', definition, re.MULTILINE):
        lines += ['', '%runscript', '    ' + read_file(RUNSCRIPT).splitlines()[1]]
    return '\n'.join(lines) + '\n'


def add_layout(sandbox):
    """Give an unpacked image this layout; its own runscript stays, such as the entrypoint of a Docker image."""
    for directory in MOUNT_POINTS:
        if not os.path.lexists(sandbox + directory):
            mkdir(sandbox + directory, parents=True)
    runscript, profile, bashrc = (sandbox + path for path in ('/.singularity.d/runscript', IN_IMAGE, BASHRC))
    if is_inside(os.path.dirname(profile), sandbox):
        put(PROFILE, profile, 0o644)
        if is_inside(bashrc, sandbox) and IN_IMAGE not in read_file(bashrc):
            write_file(bashrc, '. %s\n' % IN_IMAGE, append=True)
    if not is_inside(runscript, sandbox) or NO_RUNSCRIPT in read_file(runscript):
        put(RUNSCRIPT, runscript, 0o755)


def is_inside(path, sandbox):
    """Whether a path exists and is in the image: a link in it can lead to a directory of the host."""
    return os.path.exists(path) and os.path.realpath(path).startswith(os.path.realpath(sandbox) + os.sep)


def put(file, path, mode):
    """Copy a file into the image."""
    remove_file(path)
    copy_file(file, path)
    os.chmod(path, mode)
