##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Virtual environments: making them, packages that are built on the site, and the record of the build.
"""
