"""The record of an image: its signature, its list of packages, its bill of materials."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_images import DIGEST

from pytorch_install.images import container_runtime, image_files, signature
from pytorch_install.images.provenance import package_url, sbom

# what the module's syntax is does not matter here
pytestmark = pytest.mark.parametrize("prefix", ["Lua"], indirect=True)


def test_a_signature_without_signers_is_refused(prefix, monkeypatch):
    fingerprint = "5D" * 20
    for signers, verdict in (([], "no signature was found"), (None, "no signature was found"),
                             ([{"Signer": {"Fingerprint": fingerprint}}], None)):  # fmt: skip
        answers = [f"fingerprint {fingerprint} successfully", json.dumps({"SignerKeys": signers})]
        results = [SimpleNamespace(exit_code=0, output=answer, stderr="") for answer in answers]
        monkeypatch.setattr(signature, "run_command", lambda *_, results=results, **__: results.pop(0))
        assert signature.verify_openpgp("apptainer", "x.sif", "key.asc") == verdict


def test_the_activation_of_the_conda_environment_can_have_quotation_marks(prefix):
    activation = """export "A=it's"' here'"""
    command = container_runtime.image_python("apptainer", "x.sif", activation)
    assert command[:3] == ["apptainer", "exec", "x.sif"]
    environment = {**os.environ, "WITH_CONDA": 'export "B=of the image"'}
    code = "import os; print(os.environ['A'], os.environ['B'])"
    output = subprocess.check_output([*command[3:], "-c", code], env=environment, text=True)
    assert output == "it's here of the image\n"


def test_packages_without_a_version_are_left_out_of_the_list(prefix, tmp_path):
    for name, text in (("whole-1.dist-info", "Name: whole\nVersion: 1\n"), ("half-1.dist-info", "Name: half\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "METADATA").write_text(text)
    (tmp_path / "nothing-1.dist-info").mkdir()
    program = Path(image_files.__file__).parents[1] / "programs" / "list_packages.py"
    output = subprocess.check_output([sys.executable, program], env={**os.environ, "PYTHONPATH": str(tmp_path)})
    python = {package["name"]: package["version"] for package in json.loads(output)["packages"]["python"]}
    assert python["whole"] == "1"
    assert not {"half", "nothing"} & set(python)


@pytest.mark.parametrize(
    ("kind", "package", "url"),
    [
        ("python", {"name": "typing_extensions", "version": "4.16.0"}, "pkg:pypi/typing-extensions@4.16.0"),
        ("python", {"name": "torch", "version": "2.13.0+cpu"}, "pkg:pypi/torch@2.13.0%2Bcpu"),
        ("conda", {"name": "zlib", "version": "1.3", "build": "h1_0"}, "pkg:conda/zlib@1.3?build=h1_0"),
        ("deb", {"name": "libc6", "version": "1:2.36-9", "architecture": "amd64"},
         "pkg:deb/suse/libc6@1%3A2.36-9?arch=amd64&distro=suse-15.5"),
        ("rpm", {"name": "glibc", "version": "2.31-1", "architecture": "x86_64"},
         "pkg:rpm/suse/glibc@2.31-1?arch=x86_64&distro=suse-15.5"),
    ],
)  # fmt: skip
def test_package_urls_are_those_of_the_specification(prefix, kind, package, url):
    assert package_url(kind, package, {"ID": "suse", "VERSION_ID": "15.5"}) == url


def test_the_bill_of_materials_names_every_package_once(prefix):
    record = {"image": "x.sif", "digest": DIGEST, "sha256": "5d" * 32, "installed": "2026-01-01T00:00:00+00:00"}
    torch = {"name": "torch", "version": "2.13.0"}
    bill = sbom(record, {"distribution": {}, "packages": {"python": [torch, torch], "conda": []}})
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.5", 1)
    assert bill["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": record["sha256"]}]
    assert [component["purl"] for component in bill["components"]] == ["pkg:pypi/torch@2.13.0"]


def listed_libraries(**variables):
    program = Path(image_files.__file__).parents[1] / "programs" / "list_libraries.py"
    return json.loads(subprocess.check_output([sys.executable, "-I", program], env={**os.environ, **variables}))


def test_the_libraries_of_an_image_are_listed_with_the_versions_of_glibc_that_its_loader_knows(prefix):
    found = listed_libraries(LD_LIBRARY_PATH="")
    assert found["glibc"] == os.confstr("CS_GNU_LIBC_VERSION").split()[1]
    assert Path(found["libraries"]["libc.so.6"]).exists()
    assert {"GLIBC_2.17", "GLIBC_PRIVATE"} <= set(found["versions"]["libc.so.6"])


def test_libraries_on_the_images_own_search_path_come_first(prefix, tmp_path):
    for name in ("libfabric.so.1", "libstdc++.so.6"):
        (tmp_path / name).touch()
    found = listed_libraries(LD_LIBRARY_PATH=f"{tmp_path}:/nowhere")
    assert found["libraries"]["libfabric.so.1"] == str(tmp_path / "libfabric.so.1")
    assert found["libraries"]["libstdc++.so.6"] == str(tmp_path / "libstdc++.so.6")
    assert found["versions"]["libstdc++.so.6"] == []
