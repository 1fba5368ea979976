# SPDX-License-Identifier: BSD-3-Clause
"""Immutable records."""


class Value:
    """An immutable record. Its fields are `__slots__`, passed by name; those in `DEFAULTS` can be left out.

    Importing `dataclasses` or `collections` would cost a rank three times, or once and a half, what its start costs.
    """

    __slots__ = ()
    DEFAULTS = {}

    def __init__(self, **fields):
        fields = {**self.DEFAULTS, **fields}
        if len(fields) < len(self.__slots__):
            raise TypeError(f"{type(self).__name__} needs {', '.join(set(self.__slots__) - set(fields))}")
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name, value):
        raise AttributeError(f"{type(self).__name__} is immutable: use `replace` to change {name}")

    def replace(self, **fields):
        """A copy with other values in some fields."""
        return type(self)(**{**{name: getattr(self, name) for name in self.__slots__}, **fields})
