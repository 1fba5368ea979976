# SPDX-License-Identifier: BSD-3-Clause
"""Entry point of the runscripts; all logic is in `launch`.

Python compiles a script at every start, and a module once.
"""

import sys

sys.path.insert(0, __file__.rsplit("/", 2)[0])  # `python -I` leaves it out

from pytorch_launch.launch import main  # noqa: E402  (from there)

sys.exit(main(sys.argv[1:]))
