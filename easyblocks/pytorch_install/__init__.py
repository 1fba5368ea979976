##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
What the PyTorch easyblocks are made of: one file for each task, imported by the easyblocks beside this directory.
"""
