"""What is in an image: what every image has that is built here, its Python, its packages, and its libraries."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytorch_install import runtime
from pytorch_install.images import python_packages
from pytorch_install.sandbox import HOOK_CODE, add_layout, with_layout

NONE = '#!/bin/sh\necho "There is no runscript defined for this container\\n";\n'


@pytest.fixture
def sandbox(prefix, tmp_path):
    """A function that gives an unpacked image with some files the layout."""

    def make(files):
        for name, text in files.items():
            (tmp_path / "image" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "image" / name).write_text(text)
        for _ in range(2):  # an image on top of one that has the layout
            add_layout(str(tmp_path / "image"))
        return tmp_path / "image"

    return make


def test_the_places_of_the_modules_binds_exist_and_run_and_shells_work(sandbox):
    image = sandbox(
        {".singularity.d/runscript": NONE, "payload/file": "", "etc/bash.bashrc": "", "etc/profile.d/a": ""}
    )
    assert all((image / name).is_dir() for name in ("runscripts", "payload", "user-software"))
    assert (image / ".singularity.d/runscript").stat().st_mode & 0o777 == 0o755
    assert (image / "etc/bash.bashrc").read_text() == ". /etc/profile.d/zz-start-path.sh\n"
    assert (image / "etc/profile.d/zz-start-path.sh").exists()
    assert (sandbox({".singularity.d/runscript": "mine"}) / ".singularity.d/runscript").read_text() == "mine"


def test_links_that_lead_out_of_the_image_are_not_followed(sandbox, tmp_path):
    (tmp_path / "host").mkdir()
    (tmp_path / "host/bashrc").write_text("")
    (tmp_path / "image/etc").mkdir(parents=True)
    (tmp_path / "image/etc/profile.d").symlink_to(tmp_path / "host")
    (tmp_path / "image/etc/bash.bashrc").symlink_to(tmp_path / "host/bashrc")
    sandbox({".singularity.d/runscript": NONE})
    assert [(path.name, path.read_text()) for path in (tmp_path / "host").iterdir()] == [("bashrc", "")]


@pytest.mark.parametrize(
    ("definition", "own"), [("Bootstrap: a\n\n%post\n    true", False), ("Bootstrap: a\n%runscript\n    true", True)]
)
def test_a_definition_file_gets_what_it_lacks(prefix, definition, own):
    text = with_layout(definition)
    assert text.startswith(definition) and text.count("%runscript") == 1
    assert ('exec "${@:-python}"' in text) != own
    assert "mkdir -p /runscripts /payload /user-software" in text


@pytest.mark.parametrize("names", [["torch"], []])
def test_the_directory_of_the_images_torch_gets_the_line_that_keeps_it(prefix, tmp_path, names):
    assert "|| true" in with_layout("Bootstrap: a\n").split("%runscript")[0]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    subprocess.run([sys.executable, "-S", "-c", HOOK_CODE], env={"PYTHONPATH": str(tmp_path)}, check=True)
    assert [path.name for path in tmp_path.glob("*.pth")] == ["zz_users_pip.pth"] * len(names)


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
