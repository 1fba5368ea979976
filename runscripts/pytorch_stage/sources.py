"""The texts of the modules that stage: those for the nodes, and all of them in one file for the first rank of a job.

`python sources.py` writes this file beside itself, at the installation of a packed venv.
"""

import json
import os

#: The directory of this package, and the one above it.
PACKAGE = os.path.dirname(os.path.abspath(__file__))
RUNSCRIPTS = os.path.dirname(PACKAGE)
#: In PACKAGE; pytorch_packed.py reads it.
FILE = "sources.json"
#: What a keeper imports, and what the first rank imports beside that.
KEEPER = ("__init__", "announcing", "channel", "checksum", "keeper", "places", "tree")
FIRST_RANK = ("director", "front", "item", "loader", "rank", "sources", "starting")
OTHERS = ("pytorch_launch/__init__.py", "pytorch_launch/nodelist.py")


def files_of_keeper():
    """The files that a keeper imports, relative to RUNSCRIPTS."""
    return ["pytorch_packed.py", *(f"pytorch_stage/{name}.py" for name in KEEPER)]


def files_of_first_rank():
    """The files that the first rank imports or sends to keepers, relative to RUNSCRIPTS."""
    return [*files_of_keeper(), *(f"pytorch_stage/{name}.py" for name in FIRST_RANK), *OTHERS]


def texts(files):
    """The texts of files, from wherever this module was imported."""
    # not open(): the first rank has them from FILE
    return {file: __loader__.get_data(os.path.join(RUNSCRIPTS, file)).decode() for file in files}


if __name__ == "__main__":
    with open(os.path.join(PACKAGE, FILE), "w") as file:
        json.dump(texts(files_of_first_rank()), file)
