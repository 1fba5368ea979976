##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Packages that users install: the environment on top of an image, and its pip.
"""
