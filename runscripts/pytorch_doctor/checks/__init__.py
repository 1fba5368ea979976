# SPDX-License-Identifier: BSD-3-Clause
"""A file for each subject: its functions `check_NAME(here)` are the checks; each returns a Finding about a Context."""
