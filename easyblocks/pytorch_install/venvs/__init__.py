##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Virtual environments: what is built on the site, and with which Python and modules.
"""
