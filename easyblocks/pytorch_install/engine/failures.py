##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Why a step failed, in one sentence: a full disk, a quota that is used up, or another error of the file system.
"""
import errno
import os
import shutil
from tempfile import gettempdir

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import source_paths
from easybuild.tools.run import RunShellCmdError

# What programs say when a disk is full, or a quota is used up: strerror(3) of ENOSPC and EDQUOT.
NO_SPACE = [os.strerror(number).lower() for number in (errno.ENOSPC, errno.EDQUOT)]

# Megabytes below which a command that failed may have failed for want of space: not all say so.
SCARCE = 256

# Where the container runtime keeps what it fetches and builds, if the environment names a place.
RUNTIME_DIRECTORIES = [runtime + name for runtime in ('APPTAINER_', 'SINGULARITY_') for name in ('TMPDIR', 'CACHEDIR')]


def explain_failure(error, step, module, installdir, builddir):
    """
    An EasyBuildError that tells why a step failed; None if the error itself does.

    :param step: name of the step
    :param module: name of the module
    :param installdir: the installation directory
    :param builddir: the build directory
    """
    places = {'software': installdir, 'sources': source_paths()[0], 'build': builddir, 'temporary files': gettempdir()}
    places.update({name: os.environ[name] for name in RUNTIME_DIRECTORIES if os.environ.get(name)})
    least, space = space_left(places)
    if is_space_gone(error):
        return EasyBuildError("No space is left, or a quota is used up, in the %s step of %s; make room, there was: %s",
                              step, module, space)
    if isinstance(error, RunShellCmdError) and least < SCARCE:
        return EasyBuildError("The %s step of %s failed, perhaps for want of space (there was: %s), in the command "
                              "`%s`, whose output is in %s", step, module, space, error.cmd, error.out_file)
    if isinstance(error, OSError):
        return EasyBuildError("The %s step of %s failed: %s", step, module, error)
    return None


def is_space_gone(error):
    """Whether an error, or the output of the command that it is about, speaks of a full disk or quota."""
    said = (str(error) + str(getattr(error, 'output', ''))).lower()  # Go's programs do not capitalise
    return any(reason in said for reason in NO_SPACE)


def space_left(places):
    """
    The free space of places, {what for: directory}, as far as the file system knows it.

    :return: the least of all in MB, and a text that tells it for each place
    """
    least, texts = [], []
    for purpose, directory in places.items():
        directory = os.path.abspath(directory)
        while not os.path.isdir(directory):
            directory = os.path.dirname(directory)
        least.append(shutil.disk_usage(directory).free >> 20)
        texts.append('%d MB for %s in %s' % (least[-1], purpose, directory))
    return min(least), ', '.join(texts)
