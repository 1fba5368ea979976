# SPDX-License-Identifier: GPL-2.0-only
"""
Container images: where they come from, how they are verified, and their provenance.
"""
