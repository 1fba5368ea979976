# SPDX-License-Identifier: GPL-2.0-only
"""
Virtual environments of locked wheels, installed offline.
"""
import os

from pytorch_install.runtime import run_command

# pip without configuration and offline; also for the pip that a build starts.
OFFLINE = {'PIP_CONFIG_FILE': os.devnull, 'PIP_NO_INDEX': '1'}


def make_environment(python, directory, wheels, sees_host=False, compiles=True):
    """
    Make a virtual environment and install locked wheels into it.

    :param python: command of the Python to make it with
    :param wheels: the Wheels
    :param sees_host: whether the host's packages come after those of the environment
    :param compiles: whether pip writes bytecode
    """
    run_command([python, '-m', 'venv', *(['--system-site-packages'] if sees_host else []), directory])
    # without the user's pip configuration, and including packages that the host has
    run_command([os.path.join(directory, 'bin', 'pip'), '--isolated', 'install', '--quiet', '--ignore-installed',
                 '--no-index', '--find-links', wheels.directory, '--require-hashes', '--no-deps',
                 *([] if compiles else ['--no-compile']), '-r', wheels.requirements], OFFLINE)
