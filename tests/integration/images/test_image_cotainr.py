"""Images that cotainr builds from a base image and an environment file."""

import os

import pytest
from distributions import sha256

pytestmark = [pytest.mark.testbed, pytest.mark.early]


def test_cotainr_runs_and_its_image_is_installed(site, testbed, small_image, packages, work):
    os.link(small_image, site.central / "base.sif")
    stand_in = work / "bin" / "cotainr"
    stand_in.parent.mkdir()
    stand_in.symlink_to(testbed.layout.repository / "testbed" / "stand_ins" / "cotainr")
    environment = site.directory / "environment.yml"
    environment.write_text("dependencies:\n- python=3.11\n")
    lines = f"""sources = ['environment.yml']
checksums = ['{sha256(environment)}']
base_image = 'base.sif'
central_images = ['{site.central}']"""
    # the real cotainr is one of the test tools, which may be on the PATH
    without = """PATH=$(echo $PATH | tr : '\\n' | grep -vxF "$(dirname "$(command -v cotainr)")" | paste -sd :)"""
    assert "cotainr not found on PATH" in site.refuse(lines, settings=without)
    stand_ins = f"export PATH={stand_in.parent}:$PATH COTAINR_STAND_IN_SIF={small_image}"
    site.install(lines, settings=f"{stand_ins}\n{packages}")
    assert site.record()["source"] == "environment.yml on base.sif"
    # packed again, with what all images have that are built here
    assert site.shell("singularity run $SIF echo ran").stdout == "ran\n"
