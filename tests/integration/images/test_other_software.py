"""Recipes of other software than PyTorch for the generic easyblock: image, module, commands on the host, and srun."""

import os
import struct
import subprocess
from pathlib import Path

import pytest
from easybuild_prefix import EasyBuildPrefix
from image_site import write_root

from testbed.stand_ins.registry import ENVIRONMENT

pytestmark = [pytest.mark.testbed, pytest.mark.early]

LZ4 = 5  # the number of the compression in a SquashFS superblock


@pytest.fixture
def install(site, work):
    """A function that installs a recipe with some lines; returns one that runs a script with its module loaded."""

    def make(name, lines, options=""):
        prefix = EasyBuildPrefix(site.testbed, work, name)
        prefix.write("ContainerImage", lines)
        command = prefix.command(f"--sourcepath={work}/sources --tmpdir={work}/temporary", options)
        site.testbed.run(command, environ={**os.environ, **ENVIRONMENT}, timeout=1800)
        return lambda script: site.testbed.run(f"{prefix.load}; {script}")

    return make


def test_a_tool_in_an_image_that_was_fetched_needs_no_registry_and_runs_on_the_host_and_under_srun(
    install, registry, work
):
    root = write_root(work / "root", "sh", "cat", "seq")
    subprocess.run(["tar", "-cf", work / "layer", "-C", root, "."], check=True)
    digest = registry.add_layers([work / "layer"])
    (work / "scratch").mkdir()
    image = f"image = 'docker://{registry.address}/tools/seq@{digest}'"
    lines = f"{image}\ncommands = ['seq']\nbinds = ['{work}/scratch']"
    install("Seq", lines, "--fetch")
    registry.stop()
    run = install("Seq", lines)
    (work / "scratch" / "file").write_text("bound\n")
    output = run(
        f"command -v seq; seq 2; srun -N2 seq 1; singularity exec $SIFSEQ cat {work}/scratch/file; echo $CONTAINERROOT"
    )
    root = f"{work}/software/Seq/1.0"
    assert output.splitlines() == [f"{root}/bin/seq", "1", "2", "1", "1", "bound", root]
    # packed like images that are built here, as Apptainer's own packing slows down every import; for the fields see
    # https://dr-emann.github.io/squashfs/
    superblock = Path(root, "Seq-1.0.sif").read_bytes().partition(b"hsqs")[2]
    assert struct.unpack_from("<IH", superblock, 12) == (0, LZ4)  # fragments, compression


def test_a_tool_in_an_image_made_from_a_definition_file_runs_on_the_host_and_under_srun(install, work):
    root = write_root(work / "root", "sh", "seq")
    (work / "seq.def").write_text(f'Bootstrap: localimage\nFrom: {root}\n\n%runscript\n    exec seq "$@"\n')
    run = install("Seq", "sources = ['seq.def']\ncommands = ['seq']")
    lines = run("seq 2; singularity run $SIF 1; srun -N2 seq 1; which seq")
    assert lines.splitlines() == ["1", "2", "1", "1", "1", f"{work}/software/Seq/1.0/bin/seq"]
