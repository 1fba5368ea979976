# SPDX-License-Identifier: GPL-2.0-only
"""
Fetching: locked wheels, and the directories of EasyBuild's source path.
"""
