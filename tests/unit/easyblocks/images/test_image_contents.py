"""What is in an image: what every image has that is built here, its Python, and its packages."""

import os
import subprocess
import sys

import pytest

from pytorch_install import runtime
from pytorch_install.built_images import HOOK_CODE, LAYOUT

pytestmark = pytest.mark.early

NONE = '#!/bin/sh\necho "There is no runscript defined for this container\\n";\n'


@pytest.fixture
def image(prefix, tmp_path):
    """A function that gives the root of an image with some files the layout."""

    def make(files):
        for name, text in files.items():
            (tmp_path / "image" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "image" / name).write_text(text)
        for _ in range(2):  # an image on top of one that has the layout
            subprocess.run(["sh", "-es", tmp_path / "image"], input=LAYOUT, text=True, check=True)
        return tmp_path / "image"

    return make


def test_the_places_of_the_modules_binds_exist_and_run_and_shells_work(image):
    root = image({".singularity.d/runscript": NONE, "payload/file": "", "etc/bash.bashrc": "a\n"})
    assert all((root / name).is_dir() for name in ("runscripts", "payload", "user-software"))
    assert (root / ".singularity.d/runscript").read_text() == '#!/bin/sh\nexec "${@:-python}"\n'
    assert (root / "etc/bash.bashrc").read_text() == "a\n. /etc/profile.d/zz-start-path.sh\n"
    code = f"PATH=/of/user:/bin:/usr/bin; . {root}/etc/profile.d/zz-start-path.sh; :; echo $PATH"
    environ = {"PATH": "/of/module:/usr/bin:/bin"}
    for shell in ("sh", "bash"):
        output = subprocess.check_output([shell, "-c", code], env=environ, text=True)
        assert output == "/of/module:/usr/bin:/bin:/of/user\n"
    assert (image({".singularity.d/runscript": "mine"}) / ".singularity.d/runscript").read_text() == "mine"


@pytest.mark.parametrize("names", [["torch"], []])
def test_the_directory_of_the_images_torch_gets_the_line_that_keeps_it(prefix, tmp_path, names):
    assert LAYOUT.splitlines()[-1].endswith("|| true")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    subprocess.run([sys.executable, "-S", "-c", HOOK_CODE], env={"PYTHONPATH": str(tmp_path)}, check=True)
    assert [path.name for path in tmp_path.glob("*.pth")] == ["zz_users_pip.pth"] * len(names)


def test_the_activation_of_the_conda_environment_can_have_quotation_marks(prefix):
    activation = """export "A=it's"' here'"""
    words = [*runtime.in_image("apptainer", "x.sif", activation), "python3"]
    assert words[:3] == ["apptainer", "exec", "x.sif"]
    environment = {**os.environ, "WITH_CONDA": 'export "B=of the image"'}
    code = "import os; print(os.environ['A'], os.environ['B'])"
    output = subprocess.check_output([*words[3:], "-c", code], env=environment, text=True)
    assert output == "it's here of the image\n"
