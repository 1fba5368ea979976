"""What the loaded module has to stage: a file, and the SHA-256 that the installation recorded."""

import json
import os

from pytorch_stage import StageError


class Item:
    """A file to stage.

    `path`      the shared file
    `sha256`    its recorded checksum, in hexadecimal
    `size`      its recorded size in bytes
    `variables` the variables that name it, and that are to name the copy
    `root`      the installation directory
    """

    def __init__(self, path, sha256, size, variables, root):
        self.path = path
        self.sha256 = sha256
        self.size = size
        self.variables = variables
        self.root = root

    def as_dict(self):
        """The values, for the keepers."""
        return dict(self.__dict__)


def loaded_item(env):
    """The Item of the loaded module; raise StageError without one."""
    root = env.get("CONTAINERROOT", "")
    if env.get("PYTORCH_PACKED"):
        # PYTORCH_PACKED may name a staged copy already
        return _recorded(root, "packed.json", os.path.join(root, "venv.squashfs"), ["PYTORCH_PACKED"])
    if env.get("SIFPYTORCH"):
        # the module falls back to a copy of the site, of the same name
        own = os.path.join(root, os.path.basename(env["SIFPYTORCH"]))
        path = own if os.path.isfile(own) else env["SIFPYTORCH"]
        return _recorded(root, "image.json", path, ["SIF", "SIFPYTORCH"])
    raise StageError("no image or packed venv to stage: load a PyTorch module with a container or a packed venv")


def _recorded(root, name, path, variables):
    record = os.path.join(root, "provenance", name)
    try:
        with open(record) as file:
            values = json.load(file)
        sha256, size = values["sha256"], int(values["size"])
        found = os.stat(path).st_size
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StageError(f"cannot read {record} or {path} ({error}): install the module again") from error
    if found != size:
        raise StageError(f"{path} has {found} bytes, and its installation recorded {size}: install the module again")
    return Item(path, sha256, size, variables, root)
