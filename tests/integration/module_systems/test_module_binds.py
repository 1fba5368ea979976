"""The container module's binds: user-software, certificates, the recipe's own; its search paths and its image."""

import subprocess
from pathlib import Path

import pytest
from recorded_environment import recorded
from written_modules import state

from testbed.module_systems import snapshot, values
from testbed.recipes import CONTAINER, VENV

pytestmark = pytest.mark.testbed


@pytest.mark.parametrize(
    ("files", "mounted"),
    [
        ([], None),
        (["/venv/file"], "{}:/user-software"),
        ([".squashfs"], "{}.squashfs:/user-software:ro"),
        (["/venv/file", ".squashfs"], "{}.squashfs:/user-software:ro"),
        (["/venv/file", ".squashfs", "/.unpacked"], "{}:/user-software"),
    ],
    ids=["nothing", "directory", "packed", "both", "unpacked"],
)
def test_the_module_mounts_the_user_software_that_exists_when_it_is_loaded(image_site, files, mounted, tmp_path):
    site = image_site
    store = site.user_software
    for file in files:
        path = Path(f"{store}{file}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    script, before, loaded = recorded(tmp_path, "", f"module load {site.name}")
    site.run(script)
    singularity, apptainer, with_venv, virtual_env = state(loaded)
    assert apptainer == singularity
    mounts = [entry for entry in singularity.split(",") if f"{store.parent}/" in entry]
    if mounted:
        assert mounts == [mounted.format(store)]
        assert (":ro,image-src=." in singularity) == mounted.endswith(":ro")
        assert with_venv == "source /user-software/venv/pytorch/bin/activate"
        assert virtual_env == "/user-software/venv/pytorch"
    else:
        assert (mounts, with_venv, virtual_env) == ([], "true", None)

    # unloading removes what loading added, whatever exists by then
    change = f"rm -rf {store.parent}" if mounted else f"mkdir -p {store}"
    script, before, after = recorded(tmp_path, "", f"module load {site.name}; {change}; module unload {site.name}")
    site.run(script)
    assert snapshot(after) == snapshot(before)


def test_a_users_own_image_is_mounted_beside_the_packed_user_software_and_kept(testbed, image_site, tmp_path):
    site = image_site
    packed = image_site.user_software.with_name(image_site.user_software.name + ".squashfs")
    packed.parent.mkdir(exist_ok=True)
    for name, image in [("ours", packed), ("theirs", tmp_path / "own.squashfs")]:
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
        subprocess.run(["mksquashfs", tmp_path / name, image, "-quiet"], stdout=subprocess.DEVNULL, check=True)
    own = f"{tmp_path}/own.squashfs:/data:ro,image-src=/"
    output = site.run(
        f"""export APPTAINER_BIND={own}
module load {site.name}
{testbed.layout.root}/bin/apptainer exec $SIF ls /user-software /data
module unload {site.name}
echo $APPTAINER_BIND ${{SINGULARITY_BINDPATH-unset}}"""
    )
    assert output.split() == ["/data:", "theirs", "/user-software:", "ours", own, "unset"]


def test_the_commands_that_users_install_come_after_the_modules_and_before_the_hosts(written, tmp_path):
    site = written[VENV]
    script, before, loaded = recorded(tmp_path, f"export HOME={tmp_path}", f"module load {site.name}")
    # unloading removes what loading added, whatever exists by then
    after = site.run(f"{script}\nrm -rf $HOME/.local; mkdir -p $PYTHONUSERBASE; module unload {site.name}; echo $PATH")
    path = values(before)["PATH"]
    new = values(loaded)
    root = site.installation
    assert new["PATH"] == f"{root}/bin:{root}/venv/bin:{new['PYTHONUSERBASE']}/bin:{path}"
    assert after == path + "\n"


def test_the_hosts_certificate_files_are_bound_into_the_image(image_site, tmp_path):
    """Also if the image has other files under their paths."""
    for name in ("ca.pem", "with,comma.pem", "target.pem"):
        (tmp_path / name).touch()
    (tmp_path / "link.pem").symlink_to("target.pem")
    (tmp_path / "directory").mkdir()
    output = image_site.run(
        f"""export PIP_CERT={tmp_path}/ca.pem SSL_CERT_FILE={tmp_path}/ca.pem REQUESTS_CA_BUNDLE={tmp_path}/link.pem
export CURL_CA_BUNDLE={tmp_path}/with,comma.pem AWS_CA_BUNDLE={tmp_path}/none.pem GIT_SSL_CAINFO={tmp_path}/directory
export PIP_CONFIG_FILE=ca.pem; cd {tmp_path}
module load {image_site.name}; echo $SINGULARITY_BINDPATH; echo $APPTAINER_BINDPATH
rm ca.pem; module unload {image_site.name}; echo ${{SINGULARITY_BINDPATH-unset}}"""
    )
    first, second, after = output.splitlines()
    binds = [bind for bind in first.split(",") if str(tmp_path) in bind]
    assert binds == [f"{tmp_path}/ca.pem", f"{tmp_path}/link.pem"]
    assert (second, after) == (first, "unset")


def test_the_recipes_binds_are_those_that_exist_when_the_module_is_loaded(image_site):
    site = image_site
    output = site.run(f"module load {site.name}; echo $SINGULARITY_BINDPATH")
    binds = output.strip().split(",")
    there = f"{site.root}/there"
    assert [bind for bind in binds if "there" in bind] == [there, f"{there}:/mnt/there"]
    assert f"{site.installation}/runscripts:/runscripts" in binds
    (site.root / "not-there").mkdir()
    try:
        assert f"{site.root}/not-there" in site.run(f"module load {site.name}; echo $SINGULARITY_BINDPATH").split(",")
    finally:
        (site.root / "not-there").rmdir()


def test_a_removed_image_is_replaced_by_a_copy_of_the_sites_and_without_one_loading_fails(image_site):
    site = image_site
    image = site.installation / f"{CONTAINER}.sif"
    central = site.root / "elsewhere" / image.name
    target = image.readlink()
    reload = f"module unload {site.name}; module load {site.name}"
    try:
        central.symlink_to(target)
        output = site.run(f'module load {site.name}; echo $SIF; rm -f $SIF; {reload}; echo "$SIF $SIFPYTORCH"')
        assert output.split() == [str(image), str(central), str(central)]

        central.unlink()
        result = site.run_unchecked(f"module load {site.name}; echo $? ${{SIF-unset}} ${{EBROOTPYTORCH-unset}}")
        assert result.stdout == "1 unset unset\n"
        message = "".join(result.stderr.split())  # both break lines
        places = [image, site.root / "not-there" / image.name, central]
        assert f"imagenotfound,ornotreadable:{'or'.join(map(str, places))}.Installitagain" in message
        assert f"`eb--rebuild{CONTAINER}.eb`" in message
    finally:
        central.unlink(missing_ok=True)
        if not image.exists():
            image.symlink_to(target)


@pytest.mark.parametrize(("own", "expected"), [("/from/the/user,/b", ["/from/the/user", "/b"]), ("0", [])])
def test_the_profiles_directories_are_bound_or_the_users_list_or_none(image_site, own, expected, tmp_path):
    show = "echo $PYTORCH_BIND; echo $SINGULARITY_BINDPATH"
    script, before, after = recorded(
        tmp_path, "", f"module load {image_site.name}; {show}; module unload {image_site.name}"
    )
    output = image_site.run(script)
    profiles, binds = (line.split(",") for line in output.splitlines())
    assert all(directory in binds for directory in profiles if directory)
    assert snapshot(after) == snapshot(before)
    _, binds = image_site.run(f"export PYTORCH_BIND={own}; module load {image_site.name}; {show}").splitlines()
    assert [bind for bind in binds.split(",") if bind in expected] == expected
    assert not [directory for directory in profiles if directory and directory in binds.split(",")]


def test_what_the_user_binds_already_is_not_bound_again(image_site):
    output = image_site.run(
        f"""export APPTAINER_BIND=/other:{image_site.root}/there,/my/software:/user-software
module load {image_site.name}; echo $APPTAINER_BIND; echo $APPTAINER_BINDPATH"""
    )
    users, binds = output.splitlines()
    assert users == f"/other:{image_site.root}/there,/my/software:/user-software"
    assert f"{image_site.root}/there" not in binds.split(",") and f"{image_site.root}/there:/mnt/there" in binds
    assert ":/user-software" not in binds
    both = f"export APPTAINER_BIND=/other SINGULARITY_BIND={image_site.root}/there"  # Apptainer reads the first alone
    output = image_site.run(f"{both}; module load {image_site.name}; echo $APPTAINER_BINDPATH")
    assert f"{image_site.root}/there" in output.strip().split(",")


def test_an_environment_that_is_active_while_the_module_is_loaded_is_named(written, tmp_path):
    for recipe in (CONTAINER, VENV):
        site = written[recipe]
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
            result = site.run_unchecked(f"export {name}={tmp_path}/mine; module load {site.name}; echo $?")
            assert result.stdout == "0\n"
            message = " ".join(result.stderr.split())
            assert f"PyTorch: {tmp_path}/mine is active, and python is now the module's. Deactivate it" in message
        quiet = f"export VIRTUAL_ENV={site.installation}/venv; module load {site.name}; module unload {site.name}"
        assert "is active" not in site.run_unchecked(quiet).stderr
