"""The lines of docs/user-software.md for an image whose torch is in a virtual environment; torch is a stand-in."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "user-software.md"


def test_an_environment_on_a_virtual_environment_sees_torch_with_the_lines_of_the_page(tmp_path):
    lines = re.search(r"^    packages=.*\n    echo .*torch_of_module\.pth", PAGE.read_text(), re.MULTILINE)[0]
    version = "{}.{}".format(*sys.version_info)
    make = ["-m", "venv", "--without-pip", "--system-site-packages"]
    subprocess.run([sys.executable, *make, tmp_path / "image"], check=True)
    subprocess.run([tmp_path / "image/bin/python", *make, tmp_path / "v"], check=True)
    (tmp_path / f"image/lib/python{version}/site-packages/torch").mkdir()
    (tmp_path / f"image/lib/python{version}/site-packages/torch/__init__.py").write_text("of = 'the image'\n")
    see = ["v/bin/python", "-c", "import torch; print(torch.of)"]
    assert subprocess.run(see, cwd=tmp_path, capture_output=True, check=False).returncode == 1
    script = f"PATH={tmp_path}/image/bin:$PATH\n{lines.replace('python3.12', f'python{version}')}"
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True)
    assert subprocess.check_output(see, cwd=tmp_path, text=True) == "the image\n"
