##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Changes to EasyBuild's engine: locks, installation as a transaction, error messages. mixin.py applies them.
"""
