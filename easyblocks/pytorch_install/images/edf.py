# SPDX-License-Identifier: GPL-2.0-only
"""
Environment definition files (EDF) of the Container Engine of CSCS: their entries as TOML.

The entries: https://docs.cscs.ch/software/container-engine/edf (repository eth-cscs/cscs-docs).
"""
import json
import re

from easybuild.tools.build_log import EasyBuildError

# Bare keys of TOML, joined by dots.
NAME = re.compile(r'[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*')

# Entries that the easyblock sets.
OWN = ('image', 'mounts')


def check_entries(entries, easyconfig):
    """Stop if a recipe's entries (its parameter `edf`) cannot be written, or are set by the easyblock."""
    for name, value in entries.items():
        if name in OWN:
            raise EasyBuildError("%s: edf has '%s', which the installation sets. Remove it; paths to mount belong in "
                                 "'binds'", easyconfig, name)
        if not has_plain_names([name]) or not is_plain(value):
            raise EasyBuildError("%s: '%s' of edf must be a text, True or False, a number, or a list or dictionary of "
                                 "them. Correct %r", easyconfig, name, value)


def has_plain_names(names):
    """Whether names are those of TOML's tables."""
    return all(isinstance(name, str) and NAME.fullmatch(name) for name in names)


def is_plain(value):
    """Whether `toml` writes a value: a printable text, a boolean or a whole number, or a list or table of them."""
    if isinstance(value, dict):
        return has_plain_names(value) and is_plain(list(value.values()))
    values = value if isinstance(value, list) else [value]
    return all(isinstance(item, int) or (isinstance(item, str) and item.isprintable()) for item in values)


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
