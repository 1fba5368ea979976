"""Invalid input: one line of error, a non-zero exit status, and no files left."""

import os
import re
import shutil

import pytest

from testbed.recipes import CONTAINER, LOCK, VENV

pytestmark = pytest.mark.testbed


@pytest.fixture
def recipes(testbed, tmp_path):
    """A function that copies a recipe with a change and returns the path of the copy."""

    def edit(name, old, new):
        directory = tmp_path / "recipes"
        shutil.copytree(testbed.layout.repository / "easyconfigs" / "p" / "PyTorch", directory)
        text = (directory / name).read_text()
        assert old in text
        (directory / name).write_text(text.replace(old, new))
        return directory / name

    return edit


def eb(testbed, recipe, prefix, sources=""):
    """Run ``eb`` with a recipe and a separate prefix; return the completed process and the files it left."""
    result = testbed.run_unchecked(
        f"module unuse {testbed.layout.modules}\n"
        f"eb --installpath={prefix} --buildpath={prefix}/build --sourcepath={sources or prefix / 'sources'} "
        f"--sourcepath-data={sources or prefix / 'sources'} {recipe}"
    )
    left = [path for part in ("software", "data", "modules") for path in (prefix / part).rglob("*")]
    return result, [path for path in left if not path.is_dir()]


def one_error(result):
    """Return the only line of error of the process."""
    assert result.returncode != 0, result.stdout
    lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
    assert len(lines) == 1, result.stderr
    return lines[0]


def test_a_missing_image_source_is_named(testbed, recipes, tmp_path):
    recipe = recipes(
        f"{CONTAINER}.eb",
        "sources = ['%(name)s-%(version)s-cpu.def',",
        "sources = ['absent.sif',",
    )
    result, left = eb(testbed, recipe, tmp_path / "prefix")
    assert "Couldn't find file absent.sif" in one_error(result)
    assert left == []


def test_a_source_whose_checksum_does_not_match_is_refused(testbed, recipes, tmp_path):
    recipe = recipes(f"{VENV}.eb", "cluster", "cluster")
    lock = recipe.with_name(LOCK.name)
    lock.write_text(lock.read_text() + "# another\n")
    result, left = eb(testbed, recipe, tmp_path / "prefix")
    assert "Checksum verification for" in one_error(result)
    assert left == []


def test_a_wheel_with_another_hash_is_refused(testbed, venv, recipes, tmp_path):
    recipe = recipes(f"{VENV}.eb", "checksums", "# checksums")
    lock = recipe.with_name(LOCK.name)
    lock.write_text("filelock==4.2.11 --hash=sha256:" + 64 * "0" + "\n")
    result, left = eb(testbed, recipe, tmp_path / "prefix")
    assert "line 1: no wheel of filelock==4.2.11 for Python 3.11 on" in one_error(result)
    assert left == []


def test_a_truncated_data_file_is_refused(testbed, dataset, tmp_path):
    given = next(
        path
        for path in testbed.run("echo $EASYBUILD_SOURCEPATH").strip().split(":")
        if os.path.exists(f"{path}/train-images-idx3-ubyte.gz")  # noqa: PTH110
    )
    sources = tmp_path / "sources"
    shutil.copytree(given, sources)
    cut = sources / "t10k-images-idx3-ubyte.gz"
    cut.write_bytes(cut.read_bytes()[:100_000])
    result, left = eb(testbed, "MNIST-1998.eb", tmp_path / "prefix", sources)
    assert "Checksum verification" in one_error(result)
    assert "t10k-images-idx3-ubyte.gz" in one_error(result)
    assert left == []


@pytest.mark.parametrize("module", [pytest.param("container", marks=pytest.mark.thorough), "venv"], indirect=True)
def test_a_truncated_training_file_ends_the_run_with_one_line(testbed, module, enter, dataset, work):
    testbed.run(f"module load {dataset}; cp $MNIST_ROOT/*ubyte {work}; truncate -s 9999 {work}/t10k-im*")
    result = testbed.run_unchecked(
        f"""module load {module}
srun -N2 -n2 {enter}conda-python-distributed $PAYLOAD/mnist_ddp.py --epochs 1 --data {work}"""
    )
    assert result.returncode != 0
    # Slurm's own lines begin with srun:, slurmstepd: or slurmstepd-nid001001:
    lines = [line for line in result.stderr.splitlines() if not re.match(r"(srun|slurmstepd)(-\w+)?: ", line)]
    assert len(lines) == 1, result.stderr
    assert "t10k-images-idx3-ubyte" in lines[0]


@pytest.mark.parametrize("module", ["container", pytest.param("venv", marks=pytest.mark.thorough)], indirect=True)
def test_a_payload_that_does_not_exist_is_one_line_for_each_node(testbed, module, enter):
    result = testbed.run_unchecked(
        f"module load {module}\nsrun -N1 -n2 {enter}conda-python-distributed -u /no/such/train.py"
    )
    assert result.returncode in (2, 143)  # of the rank, or of a rank that srun ended because of it
    lines = [line for line in result.stderr.splitlines() if "train.py" in line]
    assert len(lines) == 1
    assert lines[0].startswith("conda-python-distributed: ")


@pytest.mark.parametrize("module", [pytest.param("container", marks=pytest.mark.thorough), "venv"], indirect=True)
def test_a_node_list_that_cannot_be_parsed_is_an_error_and_never_localhost(testbed, module, enter):
    result = testbed.run_unchecked(
        f"""module load {module}
srun -n1 bash -c 'SLURM_STEP_NODELIST="nid[0010" {enter}conda-python-distributed --dry-run'"""
    )
    assert result.returncode == 2
    assert "nid[0010" in result.stderr
    assert "MASTER_ADDR" not in result.stdout
