# SPDX-License-Identifier: GPL-2.0-only
"""
Packages that users install: the environment on top of an image.
"""
