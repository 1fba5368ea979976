##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Fetching: locked wheels, and the directories of EasyBuild's source path.
"""
