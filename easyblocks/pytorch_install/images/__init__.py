##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Images of containers: where they come from, what is known of them, and that they are what they should be.
"""
