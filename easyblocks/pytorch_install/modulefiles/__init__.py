# SPDX-License-Identifier: GPL-2.0-only
"""
The text of generated modules: templates in Lua and Tcl, and the values for them.
"""
