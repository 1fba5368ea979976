##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Container images: where they come from, how they are verified, and their provenance.
"""
