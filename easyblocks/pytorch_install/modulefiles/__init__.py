##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
The text of generated modules: templates in Lua and Tcl, and the values for them.
"""
