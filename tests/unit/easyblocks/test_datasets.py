"""Data sets after their installation."""

from pathlib import Path

from recipes import TREE

MNIST = TREE / "easyconfigs" / "m" / "MNIST" / "MNIST-1998.eb"


def test_files_of_mnist_are_no_links_to_files_elsewhere(easyblock):
    app = easyblock(MNIST)
    file = Path(app.installdir) / "t10k-labels-idx1-ubyte"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"labels")
    app.post_processing_step()
    assert file.is_file()
    assert not file.is_symlink()
