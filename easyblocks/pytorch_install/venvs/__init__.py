# SPDX-License-Identifier: GPL-2.0-only
"""
Virtual environments: making them, packages that are built on the site, and the record of the build.
"""
