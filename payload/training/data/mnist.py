"""The names of the MNIST files, their mirrors and checksums, and the search for them in a directory.

Source of the format and of the four names: http://yann.lecun.com/exdb/mnist
"""

from __future__ import annotations

from pathlib import Path

TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"
TEST_IMAGES = "t10k-images-idx3-ubyte"
TEST_LABELS = "t10k-labels-idx1-ubyte"
NAMES = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)

# NAME.gz is downloaded from here. Mirrors and SHA-256 checksums are those of easyconfigs/m/MNIST.
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
CHECKSUMS = {
    TRAIN_IMAGES: (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "d0810e1baa65ff3f4ba49bcbc71bd4708cee30932258b9a0a57428408f39c5f9",
    ),
    TRAIN_LABELS: ("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",),
    TEST_IMAGES: ("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",),
    TEST_LABELS: ("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",),
}


def find_idx_files(directory: Path) -> dict[str, Path]:
    """Map the names of the files that exist to their paths, which are all in one folder."""
    found = {}
    for folder in (directory, directory / "MNIST" / "raw"):
        candidates = {name: (folder / name, folder / f"{name}.gz") for name in NAMES}
        found = {name: path for name in NAMES for path in candidates[name] if path.is_file()}
        if found:
            break
    return found
