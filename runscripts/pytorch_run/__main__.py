# SPDX-License-Identifier: BSD-3-Clause
"""Entry point of `pytorch-run`."""

import sys

# `python -I` leaves the directory of the script out.
sys.path.insert(0, __file__.rsplit("/", 2)[0])

from pytorch_run.run import main

sys.exit(main(sys.argv[1:]))
