"""Entry point of the runscripts; called by `conda-python-distributed` and `get-master`.

A script is compiled anew at every start, a module is not: all the logic is in `launch`.
"""

import sys

# `python -I` leaves the directory of the script out.
sys.path.insert(0, __file__.rsplit("/", 2)[0])
# What an installation packs: one file, where every rank would ask a shared file system for the package's seventeen.
sys.path.insert(0, f"{sys.path[0]}/__pycache__/pytorch_launch.{sys.implementation.cache_tag}.zip")

from pytorch_launch.launch import main

sys.exit(main(sys.argv[1:]))
