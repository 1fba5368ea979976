"""Names that files share although each stands alone: in other languages, in images, and in recipes, which are data."""

import re
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[3]
SOURCES = ("bin", "easyblocks", "easyconfigs", "libexec", "modulefiles", "payload", "runscripts", "testbed")


def texts(*places):
    """The text files of some directories: path relative to the tree -> content."""
    files = [path for place in places for path in (TREE / place).rglob("*") if path.is_file()]
    found = {}
    for path in files:
        if "__pycache__" not in path.parts:
            found[str(path.relative_to(TREE))] = path.read_bytes().decode(errors="replace")
    return found


#: Why each file cannot take the path of the user's environment from another one.
ENVIRONMENT = {
    "easyblocks/pytorch_install/programs/make_venv.py": "the image's Python reads it from its standard input",
    "easyblocks/pytorch_install/modulefiles/container.lua": "Lua",
    "easyblocks/pytorch_install/modulefiles/container.tcl": "Tcl",
    "libexec/enter": "bash, for commands that start without the module",
    "runscripts/pytorch_launch/active.py": "runs in the image, without the easyblocks",
}


def test_the_path_of_the_users_environment_stands_once_in_each_file_that_stands_alone():
    counts = {path: text.count("/user-software/venv/pytorch") for path, text in texts(*SOURCES).items()}
    assert {path: count for path, count in counts.items() if count} == dict.fromkeys(ENVIRONMENT, 1)


def test_what_a_module_mounts_is_recorded_in_the_variable_that_the_commands_read():
    (name,) = re.findall(r"\$\{(__PYTORCH_\w+):-\}", texts("bin")["bin/make-squashfs"])
    for syntax in ("lua", "tcl"):
        path = f"easyblocks/pytorch_install/modulefiles/container.{syntax}"
        assert name in texts("easyblocks")[path], f"{path}: bin/make-squashfs reads {name}"


def test_the_testbed_knows_the_records_of_profiles_and_of_the_bootstrap_module():
    shell = (TREE / "testbed" / "shell.py").read_text()
    (of_profiles,) = re.findall(
        r" (__[A-Z_]+_)\]?$", texts("modulefiles")["modulefiles/cluster/.policy.tcl"], re.MULTILINE
    )
    (of_bootstrap,) = re.findall(r"^set recorded_by (\w+)_SET_$", _settings(), re.MULTILINE)
    assert f'f"{of_profiles}{{name}}"' in shell
    assert f'"{of_bootstrap}_"' in shell


def test_the_profiles_read_the_cuda_or_rocm_that_the_module_notes():
    procedures = texts("modulefiles")["modulefiles/cluster/.policy.tcl"]
    (noted,) = re.findall(r"\$env\((__PYTORCH_\w+)\)", procedures)
    assert any(f"'{noted}'" in text for text in texts("easyblocks").values())


def test_every_variable_of_our_own_that_a_profile_sets_is_read_by_a_program():
    profiles = "\n".join(text for path, text in texts("modulefiles").items() if "/cluster/" in path)
    programs = "\n".join(texts("runscripts", "payload").values())
    procedures = texts("modulefiles")["modulefiles/cluster/.policy.tcl"]
    (by_procedures,) = re.findall(r"^array set host_network \{(.*)\}$", procedures, re.MULTILINE)
    prefixes = re.findall(r'^[A-Z_]+ = "(PYTORCH_[A-Z_]+_)"$', programs, re.MULTILINE)
    assert {"PYTORCH_MULTI_NODE_", "PYTORCH_ONE_NODE_", "PYTORCH_DISTRIBUTED_"} <= set(prefixes)
    ours = set(re.findall(r"^(?:    default_)?policy (PYTORCH_\w+)", profiles, re.MULTILINE))
    named = {name for name in ours if not name.startswith((*prefixes, "PYTORCH_DRIVER_"))}
    assert {"PYTORCH_FABRIC_NAME", "PYTORCH_SOCKET_IFNAME"} <= named
    assert not {name for name in named if f'"{name}"' not in programs and name not in by_procedures.split()}


def _settings():
    return texts("modulefiles")["modulefiles/.easybuild_settings.tcl"]


@pytest.mark.parametrize("place", ["payload", "easyconfigs"])
def test_the_files_of_mnist_have_the_same_names_in_the_recipe_and_the_payload(place):
    names = set(re.findall(r"\b(?:train|t10k)-\w+-idx\d-ubyte\b", "\n".join(texts(place).values())))
    assert names == {f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")}


def test_the_recipe_of_mnist_checks_every_file_that_it_unpacks():
    recipe = texts("easyconfigs")["easyconfigs/m/MNIST/MNIST-1998.eb"]
    unpacked = re.findall(r"'(\S+-ubyte)'", recipe)
    assert sorted(f"{name}.gz" for name in unpacked) == sorted(re.findall(r"'(\S+-ubyte\.gz)'", recipe))
