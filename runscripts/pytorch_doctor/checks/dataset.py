"""Checks the data set of the example training."""

import gzip
import hashlib
import zlib
from pathlib import Path

from pytorch_doctor import fail, not_applicable, ok

#: SHA-256 of the four files once unpacked, as `eb MNIST-1998.eb` installs them.
FILES = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
AGAIN = "`module load MNIST` again, or install it again with `eb --rebuild MNIST-1998.eb`"


def check(here):
    """Whether the four files are in MNIST_ROOT, and undamaged."""
    root = here.env.get("MNIST_ROOT")
    if not root:
        return not_applicable("dataset", "MNIST_ROOT is not set; the example generates digits (module load MNIST)")
    for folder in (Path(root), Path(root, "MNIST", "raw")):
        found = {name: _path(folder, name) for name in FILES}
        if any(found.values()):
            break
    missing = [name for name, path in found.items() if path is None]
    if missing:
        where = f"is visible in the image: see {here.binds}, or " if here.in_image else "is the right directory, or "
        finding = "MNIST_ROOT={} has no {}".format(root, " nor ".join(missing))
        return fail("dataset", finding, "check that it " + where + AGAIN)
    for name, path in found.items():
        try:
            if hashlib.sha256(_content(path)).hexdigest() != FILES[name]:
                return fail("dataset", f"{path} is damaged, or not MNIST", AGAIN)
        except (OSError, EOFError, zlib.error) as error:
            return fail("dataset", f"{path} cannot be read: {error}", AGAIN)
    return ok("dataset", f"{root}: MNIST, 4 files, as published")


def _path(folder, name):
    paths = (folder / name, folder / f"{name}.gz")
    return next((path for path in paths if path.is_file()), None)


def _content(path):
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content
