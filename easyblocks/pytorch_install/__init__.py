# SPDX-License-Identifier: GPL-2.0-only
"""Functions and values of the PyTorch easyblocks; programs/ is for the runtime's Python (3.8, standard library)."""
from easybuild.tools.version import VERSION

# the first with data sets (--sourcepath-data); `eb` imports all easyblocks of this checkout for any recipe
OLDEST = '5.1'

if VERSION < OLDEST:
    raise ImportError("the PyTorch easyblocks need EasyBuild %s or newer, and this is %s. Load or install it"
                      % (OLDEST, VERSION))
