# SPDX-License-Identifier: GPL-2.0-only
"""
Functions and values of the PyTorch easyblocks. No function takes an easyblock as an argument.

engine/             changes to EasyBuild's engine: transactions, checks before the first step; mixin.py applies them
images/             container images: from the recipe to the installed file and its provenance
venvs/              virtual environments: making them, and packages that are built here
programs/           what the runtime's Python runs: Python 3.8, standard library alone
modulefiles/        the text of generated modules: templates in Lua and Tcl, and the values for them
user_software.py    packages that users install
directories.py      the source path
runtime.py          running commands, and which of them a runtime has
tree.py             what an installation gets from this checkout; the list of commands
"""
from easybuild.tools.version import VERSION

# the first with data sets (--sourcepath-data); `eb` imports all easyblocks of this checkout for any recipe
OLDEST = '5.1'

if VERSION < OLDEST:
    raise ImportError("the PyTorch easyblocks need EasyBuild %s or newer, and this is %s. Load or install it"
                      % (OLDEST, VERSION))
