# SPDX-License-Identifier: BSD-3-Clause
"""One module for each subject; each check is a function of `Context` that returns a Finding."""
