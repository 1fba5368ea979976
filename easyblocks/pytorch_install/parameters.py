# SPDX-License-Identifier: GPL-2.0-only
"""
Types and allowed values of the easyconfig parameters that the PyTorch easyblocks add; wrong ones stop `eb` at once.
"""
import os
import re

from easybuild.framework.easyconfig import MANDATORY
from easybuild.tools.build_log import EasyBuildError


def text(pattern=None):
    """A test for texts without control characters that match a pattern."""
    return lambda value: isinstance(value, str) and value.isprintable() and bool(re.fullmatch(pattern or '.+', value))


def texts(pattern=None):
    """A test for lists of such texts."""
    return lambda value: isinstance(value, (list, tuple)) and all(map(text(pattern), value))


def or_none(test):
    """A test that None passes too."""
    return lambda value: value is None or test(value)


def is_source_packages(value):
    """Whether a value is a list of names with texts by the names of environment variables."""
    return isinstance(value, (list, tuple)) and all(
        isinstance(package, (list, tuple)) and len(package) == 2 and text(r'[\w.-]+')(package[0])
        and isinstance(package[1], dict) and texts(r'\w+')([*package[1]]) and texts('.*')([*package[1].values()])
        for package in value)


# Tests of values, and what the message expects.
NAME, PATHS = r'[^\s/]\S*', r'/.*'
EXPECTED = {
    'base_image': (or_none(text()), "a text or None"),
    'binds': (texts(PATHS), "a list of absolute paths, such as ['/scratch']"),
    'central_images': (texts(PATHS), "a list of absolute paths, such as ['/appl/images']"),
    'cluster': (text(r'[\w.+-]+'), "the name of a cluster profile, such as 'local'"),
    'commands': (texts(r'[\w.+][\w.+-]*'), "a list of names of commands, such as ['python']"),
    'conda_activation': (text(), "a text with a command, such as 'true'"),
    'conflicts': (texts(NAME), "a list of names of modules, such as ['pytorch']"),
    'debian_packages': (texts(r'[a-z0-9][a-z0-9.+-]+'), "a list of names of Debian packages"),
    'debian_release': (or_none(text(r'[a-z]+')), "the name of a Debian release, such as 'bookworm', or None"),
    'edf': (lambda value: isinstance(value, dict), "a dictionary of entries of the environment definition file"),
    'gpu': (lambda value: value is None or value in ('cuda', 'rocm', 'xpu'), "'cuda', 'rocm', 'xpu' or None"),
    'image': (text(r'\S+'), "a text with the name of an image"),
    'image_checksum': (or_none(text('[0-9a-f]{64}')), "a SHA-256 (64 hexadecimal digits), or None"),
    'machines': (texts(r'\w+'), "a list of names of machines, such as ['x86_64']"),
    'mksquashfs_args': (text('.*'), "a text with options of mksquashfs"),
    'packed': (lambda value: isinstance(value, bool), "True or False"),
    'podman_options': (texts(), "a list of options of podman-hpc, such as ['--gpu']"),
    'python_version': (text(r'\d+\.\d+'), "a text with two numbers, such as '3.11'"),
    'shifter_modules': (texts(r'[^\s,]+'), "a list of names of Shifter modules, such as ['gpu']"),
    'source_packages': (is_source_packages, "a list of tuples, such as [('mpi4py', {'MPICC': 'mpicc'})]"),
    'wheel_index': (or_none(text(r'\S+')), "a text with the address of a package index, or None"),
}


def check_parameters(recipe, options):
    """
    Stop if a parameter has a wrong type, or a value that is not allowed; nothing is converted.

    :param recipe: parameters of the easyconfig
    :param options: the easyblock's own parameters, as in `extra_options`
    """
    for name, (_, _, category) in options.items():
        test, expected = EXPECTED[name]
        if name == 'image' and category != MANDATORY:
            test, expected = or_none(test), expected + ", or None"
        if not test(recipe[name]):
            raise EasyBuildError("%s: %s = %r is wrong: expected %s. Correct the recipe",
                                 os.path.basename(recipe.path), name, recipe[name], expected)
