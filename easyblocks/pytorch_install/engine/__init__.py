##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
What the PyTorch easyblocks change in EasyBuild's engine: locks, installations as transactions, error messages.
"""
