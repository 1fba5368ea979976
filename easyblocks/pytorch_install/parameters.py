# SPDX-License-Identifier: GPL-2.0-only
"""
Types and allowed values of the easyconfig parameters that the PyTorch easyblocks add.
"""
from easybuild.easyblocks.generic import containerimage
from easybuild.easyblocks.generic.containerimage import check_parameters, or_none, text, texts  # noqa: F401


def is_source_packages(value):
    """Whether a value is a list of names with texts by the names of environment variables."""
    return isinstance(value, (list, tuple)) and all(
        isinstance(package, (list, tuple)) and len(package) == 2 and text(r'[\w.-]+')(package[0])
        and isinstance(package[1], dict) and texts(r'\w+')([*package[1]]) and texts('.*')([*package[1].values()])
        for package in value)


EXPECTED = {
    **containerimage.EXPECTED,
    'base_image': (or_none(text()), "a text or None"),
    'cluster': (text(r'[\w.+-]+'), "the name of a cluster profile, such as 'local'"),
    'conda_activation': (text(), "a text with a command, such as 'true'"),
    'conflicts': (texts(r'[^\s/]\S*'), "a list of names of modules, such as ['pytorch']"),
    'edf': (lambda value: isinstance(value, dict), "a dictionary of entries of the environment definition file"),
    'machines': (texts(r'\w+'), "a list of names of machines, such as ['x86_64']"),
    'packed': (lambda value: isinstance(value, bool), "True or False"),
    'podman_options': (texts(), "a list of options of podman-hpc, such as ['--gpu']"),
    'python_version': (text(r'\d+\.\d+'), "a text with two numbers, such as '3.11'"),
    'shifter_modules': (texts(r'[^\s,]+'), "a list of names of Shifter modules, such as ['gpu']"),
    'source_packages': (is_source_packages, "a list of tuples, such as [('mpi4py', {'MPICC': 'mpicc'})]"),
    'wheel_index': (or_none(text(r'\S+')), "a text with the address of a package index, or None"),
}
