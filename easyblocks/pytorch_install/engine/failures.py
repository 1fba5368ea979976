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

# Messages of programs when a disk is full or a quota is used up: strerror(3) of ENOSPC and EDQUOT.
NO_SPACE = [os.strerror(number).lower() for number in (errno.ENOSPC, errno.EDQUOT)]

# Megabytes of free space below which a failed command may have run out of it: not all commands report that.
SCARCE = 256

# Variables that name the container runtime's directories for downloads and builds.
RUNTIME_DIRECTORIES = [runtime + name for runtime in ('APPTAINER_', 'SINGULARITY_') for name in ('TMPDIR', 'CACHEDIR')]


def explain_failure(error, step, module, installdir, builddir):
    """
    An EasyBuildError with the reason for a failed step; None if the error itself has it.

    :param step: name of the step
    :param module: name of the module
    :param installdir: the installation directory
    :param builddir: the build directory
    """
    places = {'software': installdir, 'sources': source_paths()[0], 'build': builddir, 'temporary files': gettempdir()}
    places.update({name: os.environ[name] for name in RUNTIME_DIRECTORIES if os.environ.get(name)})
    least, space = space_left(places)
    if is_space_gone(error):
        return EasyBuildError("No space is left, or a quota is used up, in the %s step of %s. Free some; there was: "
                              "%s", step, module, space)
    if isinstance(error, RunShellCmdError) and least < SCARCE:
        return EasyBuildError("The %s step of %s failed, possibly for lack of space (there was: %s), in the command "
                              "`%s`. The full output is in %s", step, module, space, error.cmd, error.out_file)
    if isinstance(error, OSError):
        return EasyBuildError("The %s step of %s failed: %s", step, module, error)
    return None


def is_space_gone(error):
    """Whether an error, or the output of the command that failed, reports a full disk or quota."""
    text = (str(error) + str(getattr(error, 'output', ''))).lower()  # Go's programs do not capitalise
    return any(reason in text for reason in NO_SPACE)


def space_left(places):
    """
    Free space of directories, as the file system reports it.

    :param places: directories by their purposes
    :return: the least of all in MB, and a text with that of each directory
    """
    least, texts = [], []
    for purpose, directory in places.items():
        directory = os.path.abspath(directory)
        while not os.path.isdir(directory):
            directory = os.path.dirname(directory)
        least.append(shutil.disk_usage(directory).free >> 20)
        texts.append('%d MB for %s in %s' % (least[-1], purpose, directory))
    return min(least), ', '.join(texts)
