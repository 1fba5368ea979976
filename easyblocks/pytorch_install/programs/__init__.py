# SPDX-License-Identifier: BSD-3-Clause
"""
Programs that the runtime's Python runs: Python 3.8 or newer, standard library alone, no EasyBuild.
"""
