##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Programs that the runtime's Python runs: Python 3.8 or newer, standard library alone, no EasyBuild.
"""
