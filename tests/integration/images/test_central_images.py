"""Images in a central directory of the site: installed, recorded, checked, and refused."""

import os

import pytest
from distributions import sha256
from image_site import flip_a_bit

pytestmark = [pytest.mark.testbed, pytest.mark.early]


def test_an_image_of_a_central_directory_is_installed_recorded_and_checked_by_a_command(site, small_image, packages):
    central = site.central / "site-pytorch.sif"
    os.link(small_image, central)
    lines = f"image = '{central.name}'\ncentral_images = ['{site.central}']"
    site.install(lines, settings=packages)
    installed = site.installation / central.name
    checksum = sha256(central)
    assert sha256(installed) == checksum
    assert not list(site.sources.rglob("*.sif"))
    record = site.record()
    assert record["sha256"] == checksum
    assert record["size"] == central.stat().st_size
    assert record["source"] == central.name
    assert record["easyconfig"] == site.recipe.name

    assert record["python_version"].startswith("3.11.")
    assert record["python"].endswith("/bin/python3")

    checked = site.shell("check-image")
    assert checked.returncode == 0, checked.stderr
    assert f"{installed} is as it was installed" in checked.stdout

    flip_a_bit(installed, installed.stat().st_size // 2)
    damaged = site.shell("check-image")
    assert damaged.returncode == 1
    assert f"{installed} has SHA-256" in damaged.stderr
    assert damaged.stderr.count("\n") == 1

    installed.unlink()
    elsewhere = site.shell("check-image")
    assert elsewhere.returncode == 0, elsewhere.stderr
    assert f"{central} is as it was installed" in elsewhere.stdout
