##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Changes to EasyBuild's engine: installation as a transaction, checks before the first step. mixin.py applies them.
"""
