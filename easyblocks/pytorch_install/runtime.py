# SPDX-License-Identifier: GPL-2.0-only
"""
Running programs/ with an installed runtime (image or environment).

A command is a list of words; no shell of the host interprets it.
"""
import json
import os

from easybuild.easyblocks.generic.containerimage import run_command
from easybuild.tools.filetools import copy_file, mkdir, read_file, write_file

# Programs for the runtime's Python.
PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'programs')

# Directory of the installation with what keeps torch when users install packages.
HELD = 'held'


def read_json(path):
    """The dictionary in a JSON file; empty if there is none."""
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        return json.load(file)


def write_json(path, content):
    """Write a JSON file, and its directory."""
    mkdir(os.path.dirname(path), parents=True)
    write_file(path, json.dumps(content, indent=2) + '\n')


def run_program(python, name, *arguments, isolation='-I', **options):
    """
    Run a file of programs/ with the runtime's Python, and return the result.

    Python reads it from standard input, as an image may not see this file.

    :param python: command of that Python, as a list
    :param isolation: Python's option that ignores the user's settings
    """
    return run_command([*python, isolation, '-', *arguments], stdin=read_file(os.path.join(PROGRAMS, name)), **options)


def hold_packages(python, installdir, index):
    """Write what pip and uv need to keep torch and what belongs to it into the installation; nothing without torch."""
    # without those of the host, the image can set its own
    run_program(python, 'hold_packages.py', installdir, index or '', isolation='-s', hidden=True,
                variables={'PYTHONPATH': None, 'PIP_CONSTRAINT': None})
    if os.path.isdir(os.path.join(installdir, HELD)):
        copy_file(os.path.join(PROGRAMS, 'users_pip.py'), os.path.join(installdir, HELD, 'users_pip.py'))


def install_site_files(library):
    """Install what Python reads when it starts; `library` is a venv module's directory of the standard library."""
    packages = os.path.join(library, 'site-packages')
    copy_file(os.path.join(PROGRAMS, 'keep_torch.py'), os.path.join(packages, 'keep_torch.py'))
    write_file(os.path.join(packages, 'keep_torch.pth'), 'import keep_torch\n')


def in_image(runtime, image, conda_activation, *options):
    """
    Command that runs another one in an image, in its conda environment if it has one.

    :param conda_activation: the recipe's command that activates the environment; that of the image runs before it
    :param options: options of the runtime's `exec`
    """
    script = 'eval "${WITH_CONDA:-}"; %s; exec "$0" "$@"' % conda_activation
    return [runtime, 'exec', *options, image, 'bash', '-c', script]
