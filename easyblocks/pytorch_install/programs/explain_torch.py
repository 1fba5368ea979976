# SPDX-License-Identifier: BSD-3-Clause
# Names the remedy if a program ends because an environment on top of this Python does not inherit its torch. It is the
# end of sitecustomize.py in the standard library of a venv module, which every environment on top imports.
import sys


def explain_torch(kind, error, trace, previous=sys.excepthook):
    """Print the error as before, then the remedy."""
    previous(kind, error, trace)
    if kind is ModuleNotFoundError and error.name == 'torch' and sys.prefix != sys.base_prefix and sys.stderr:
        print("%s does not inherit the module's torch. Run `%s -m venv --system-site-packages %s`; its packages stay"
              % (sys.prefix, sys._base_executable, sys.prefix), file=sys.stderr)


sys.excepthook = explain_torch
