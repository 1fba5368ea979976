# SPDX-License-Identifier: GPL-2.0-only
"""
Changes to EasyBuild's engine: installation as a transaction, checks before the first step. mixin.py applies them.
"""
