"""check-image compares the image with its own record, not with that of the image it was built on."""

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

COMMAND = Path(__file__).resolve().parents[3] / "bin" / "check-image"


@pytest.mark.parametrize("name", ["sha256", "size"])
def test_an_image_is_compared_with_its_own_record_and_not_with_that_of_its_base(tmp_path, name):
    image = tmp_path / "x.sif"
    image.write_bytes(b"image")
    record = {"sha256": hashlib.sha256(b"image").hexdigest(), "size": 5, "base": {"sha256": "0" * 64, "size": 7}}
    (tmp_path / "provenance").mkdir()
    path = tmp_path / "provenance" / "image.json"
    path.write_text(json.dumps(record, indent=2) + "\n")
    environment = {"PATH": "/usr/bin:/bin", "SIFPYTORCH": str(image), "CONTAINERROOT": str(tmp_path)}
    result = subprocess.run([COMMAND], env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert f"{image} is as it was installed" in result.stdout
    path.write_text(json.dumps({**record, name: record["base"][name]}, indent=2) + "\n")
    result = subprocess.run([COMMAND], env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
