"""The record of an image: its Python, its list of packages, its libraries."""

import json
import os
import subprocess
import sys
from pathlib import Path

from pytorch_install import runtime
from pytorch_install.images import python_packages


def test_the_activation_of_the_conda_environment_can_have_quotation_marks(prefix):
    activation = """export "A=it's"' here'"""
    command = runtime.image_python("apptainer", "x.sif", activation)
    assert command[:3] == ["apptainer", "exec", "x.sif"]
    environment = {**os.environ, "WITH_CONDA": 'export "B=of the image"'}
    code = "import os; print(os.environ['A'], os.environ['B'])"
    output = subprocess.check_output([*command[3:], "-c", code], env=environment, text=True)
    assert output == "it's here of the image\n"


def test_an_image_without_pip_is_a_warning(prefix, tmp_path, capfd):
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\necho 'No module named pip' >&2; exit 1\n")
    python.chmod(0o755)
    assert python_packages([str(python)]) == {}
    assert "no list of packages: pip failed in the image: No module named pip" in capfd.readouterr().err


def listed_libraries(**variables):
    program = Path(runtime.__file__).parent / "programs" / "list_libraries.py"
    return json.loads(subprocess.check_output([sys.executable, "-I", program], env={**os.environ, **variables}))


def test_libraries_on_the_images_own_search_path_come_first(prefix, tmp_path):
    for name in ("libfabric.so.1", "libstdc++.so.6"):
        (tmp_path / name).touch()
    found = listed_libraries(LD_LIBRARY_PATH=f"{tmp_path}:/nowhere")
    assert found["libraries"]["libfabric.so.1"] == str(tmp_path / "libfabric.so.1")
    assert found["libraries"]["libstdc++.so.6"] == str(tmp_path / "libstdc++.so.6")
    assert found["versions"]["libstdc++.so.6"] == []
