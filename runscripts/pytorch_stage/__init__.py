# SPDX-License-Identifier: BSD-3-Clause
"""Copies the image or the packed venv of the loaded module, or any file, to each node of a job (`pytorch-stage`)."""
