"""The payload on two nodes: the same result in container and venv, and with any number of ranks."""

import re

import pytest

pytestmark = pytest.mark.testbed


@pytest.mark.thorough  # test_demo.py trains in the same way; test_checkpoints.py looks at the files
def test_two_nodes_train_mnist_to_97_percent_in_one_epoch_and_rank_zero_alone_writes(
    testbed, module, enter, dataset, work
):
    output = testbed.run(
        f"""module load {dataset} {module}
srun -N2 --ntasks-per-node=2 {enter}conda-python-distributed -u $PAYLOAD/mnist_ddp.py --epochs 1 --modelpath model""",
        cwd=work,
    )
    assert "world size 4" in output
    assert "60000 training and 10000 test images" in output
    assert re.search(r"^epoch 1/1  loss \d\.\d+  test accuracy \d+\.\d\d %  images/s \d+$", output, re.MULTILINE)
    assert re.search(r"^training time: \d+\.\d s$", output, re.MULTILINE)
    assert float(re.search(r"^test accuracy: (\d+\.\d\d) %$", output, re.MULTILINE)[1]) >= 97

    names = {path.name for path in (work / "model").iterdir()} - {"curves.png"}  # needs matplotlib
    assert names == {"mnist_ddp.pt", "checkpoints", "metrics.jsonl"}
    assert {path.name for path in (work / "model" / "checkpoints").iterdir()} == {
        "best.pt",
        "epoch-0001-step-000000.pt",
    }
