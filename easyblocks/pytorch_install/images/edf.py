##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Environment definition files (EDF) of the Container Engine of CSCS: their entries, checked, as TOML.

The entries: https://docs.cscs.ch/software/container-engine/edf (repository eth-cscs/cscs-docs).
"""
import json
import re

from easybuild.tools.build_log import EasyBuildError

# The type of each entry; of lists and tables, all values are texts.
ENTRIES = {'image': str, 'mounts': list, 'workdir': str, 'entrypoint': bool, 'writable': bool, 'env': dict,
           'annotations': dict}
TYPES = {str: 'a text', bool: 'True or False', list: 'a list of texts', dict: 'a dictionary of texts'}

# Bare keys of TOML, joined by dots.
NAME = re.compile(r'[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*')

# Those that the easyblock sets.
OWN = ('image', 'mounts')


def check_entries(entries, easyconfig):
    """
    Stop if a recipe's entries are not those of an EDF.

    :param entries: value of the easyconfig parameter `edf`
    :param easyconfig: file name of the recipe
    """
    if not isinstance(entries, dict):
        raise EasyBuildError("%s: edf must be a dictionary. Correct %r", easyconfig, entries)
    for name, value in entries.items():
        if name in OWN:
            raise EasyBuildError("%s: edf has '%s', which the installation sets. Remove it; paths to mount belong in "
                                 "'binds'", easyconfig, name)
        if name not in ENTRIES:
            raise EasyBuildError("%s: edf has '%s', which is no entry of the Container Engine. Its entries: %s",
                                 easyconfig, name, ', '.join(entry for entry in ENTRIES if entry not in OWN))
        if not is_of_kind(value, ENTRIES[name]):
            raise EasyBuildError("%s: '%s' of edf must be %s. Correct %r", easyconfig, name, TYPES[ENTRIES[name]],
                                 value)


def is_of_kind(value, kind):
    """Whether a value is of a type of TYPES, its texts are printable, and its names are those of a table of TOML."""
    if not isinstance(value, kind):
        return False
    if kind is dict and not all(isinstance(name, str) and NAME.fullmatch(name) for name in value):
        return False
    texts = {list: list, dict: lambda table: list(table.values()), str: lambda text: [text]}.get(kind, lambda _: [])
    return all(isinstance(text, str) and text.isprintable() for text in texts(value))


def literal(path):
    """A path in which the Container Engine expands no variable."""
    return path.replace('$', '$$')


def toml(entries):
    """Text of an EDF: its entries, then its tables."""
    tables = {name: value for name, value in entries.items() if isinstance(value, dict)}
    lines = ['%s = %s' % (name, written(value)) for name, value in entries.items() if name not in tables]
    for table, values in tables.items():
        lines += ['', '[%s]' % table]
        # annotations have dotted keys, which nest; a variable's name has no dot
        lines += ['%s = %s' % (name, written(value)) for name, value in values.items()]
    return '\n'.join(lines) + '\n'


def written(value):
    """A value as TOML; its texts, lists and booleans are those of JSON (https://toml.io/en/v1.0.0)."""
    if isinstance(value, list):
        return '[\n%s]' % ''.join('    %s,\n' % written(item) for item in value)
    return json.dumps(value, ensure_ascii=False)
