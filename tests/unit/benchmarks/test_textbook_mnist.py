"""The textbook's loop that ours is compared with."""

import pytest

torch = pytest.importorskip("torch")
from training.data import digits_set, normalise  # noqa: E402

from benchmarks.programs import textbook_mnist  # noqa: E402


@pytest.fixture(scope="module")
def few():
    """The first of the drawn digits."""
    data = digits_set()
    return data._replace(
        train_images=data.train_images[:640],
        train_labels=data.train_labels[:640],
        test_images=data.test_images[:200],
        test_labels=data.test_labels[:200],
    )


def test_images_are_those_of_the_example_one_by_one(few):
    images = textbook_mnist.Images(few.train_images, few.train_labels)
    assert len(images) == 640
    image, label = images[7]
    assert torch.allclose(image, normalise(few.train_images, torch.device("cpu"))[7], atol=1e-6)
    assert label == few.train_labels[7]


def test_the_network_is_the_examples():
    shapes = [list(weights.shape) for weights in textbook_mnist.build_model().parameters() if weights.dim() > 1]
    assert shapes == [[32, 1, 3, 3], [64, 32, 3, 3], [128, 9216], [10, 128]]
    assert textbook_mnist.build_model()(torch.zeros(2, 1, 28, 28)).exp().sum(dim=1).tolist() == pytest.approx([1, 1])


def test_a_part_of_an_epoch_gives_the_time_of_a_whole_one(few, monkeypatch):
    clock = iter([100.0, 106.0])
    monkeypatch.setattr(textbook_mnist.time, "perf_counter", lambda: next(clock))
    assert textbook_mnist.time_epoch(few, seed=0, batches=3) == 20.0  # 2 s a batch, 10 batches
