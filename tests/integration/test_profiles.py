"""The cluster profiles under Lmod and Environment Modules: what loading sets, and that unloading undoes it."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from test_module import SNAPSHOT, snapshot
from testbed.packages import find_command, find_lmod

pytestmark = pytest.mark.testbed

MODULEFILES = Path(__file__).resolve().parents[2] / "modulefiles"
PROFILES = sorted(path.name for path in (MODULEFILES / "cluster").iterdir() if not path.name.startswith("."))


def settings(profile):
    """The variables that a profile's text sets: name -> value."""
    text = (MODULEFILES / "cluster" / profile).read_text()
    return {name: value.strip('"') for name, value in re.findall(r"^policy (\w+) (.+)$", text, re.MULTILINE)}


class Modules:
    """A module system in a shell that has nothing else: no Slurm, no EasyBuild, no module loaded."""

    def __init__(self, name, code):
        self.name = name
        self.code = code

    def run_unchecked(self, script, *directories):
        """Run a bash script with `directories` as MODULEPATH, by default this tree's; output as text."""
        lines = [self.code, f"export MODULEPATH={':'.join(map(str, directories or (MODULEFILES,)))}", script]
        return subprocess.run(
            ["bash", "-c", "\n".join(lines)],
            env={name: os.environ[name] for name in ("HOME", "PATH")}, cwd="/", stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    def run(self, script, *directories):
        """Run a bash script that must succeed; return its standard output."""
        result = self.run_unchecked("set -e\n" + script, *directories)
        assert result.returncode == 0, f"{script}\n{result.stdout}\n{result.stderr}"
        return result.stdout


def unpacked_environment_modules(directory):
    """Environment Modules' modulecmd.tcl: of the machine, else Debian's unpacked, as that conflicts with Lmod's."""
    if "MODULES_CMD" in os.environ:
        return Path(os.environ["MODULES_CMD"])
    if not any(directory.glob("*.deb")):
        if not (find_command("apt-get") and find_command("dpkg")):
            pytest.skip("Environment Modules are not here, and their package is unpacked on Debian and Ubuntu only")
        directory.mkdir(exist_ok=True)
        answer = subprocess.run(
            ["apt-get", "download", "environment-modules"], cwd=directory, capture_output=True, text=True, check=False
        )
        if answer.returncode:
            shutil.rmtree(directory)
            pytest.skip(f"apt-get cannot download environment-modules: {answer.stderr.strip()}")
    package = next(directory.glob("*.deb"))
    subprocess.run(["dpkg", "-x", package, directory / "root"], check=True)
    return next((directory / "root" / "usr" / "lib").rglob("modulecmd.tcl"))


@pytest.fixture(scope="session", params=["Lmod", "Environment Modules"])
def modules(request, testbed):
    """Each of the two module systems."""
    if request.param == "Lmod":
        return Modules(request.param, f". {shlex.quote(str(find_lmod()))}")
    command = unpacked_environment_modules(testbed.layout.root / "environment-modules")
    return Modules(request.param, f'module() {{ eval "$(tclsh {shlex.quote(str(command))} bash "$@")"; }}')


def values(path):
    """A snapshot's variables and values, without the module systems' own records of what is loaded."""
    entries = dict(entry.split("=", 1) for entry in snapshot(path))
    own = ("LOADEDMODULES", "_LMFILES_", "__MODULES_", "_")
    return {name: value for name, value in entries.items() if name not in own and not name.startswith(own[2])}


@pytest.mark.parametrize("profile", PROFILES)
def test_loading_sets_what_the_file_says_and_unloading_leaves_the_environment_as_it_was(modules, profile, tmp_path):
    before, loaded, twice, after = (tmp_path / state for state in ("before", "loaded", "twice", "after"))
    modules.run(
        f"""{SNAPSHOT.format(before)}
module load cluster/{profile}
{SNAPSHOT.format(loaded)}
module load cluster/{profile}
{SNAPSHOT.format(twice)}
module unload cluster/{profile}
{SNAPSHOT.format(after)}"""
    )
    assert snapshot(after) == snapshot(before)
    assert values(twice) == values(loaded)
    new = {name: value for name, value in values(loaded).items() if name not in values(before)}
    notes = {name: new.pop(name) for name in list(new) if name.startswith("__CLUSTER_SET_")}
    assert new == settings(profile)
    assert sorted(notes) == sorted(f"__CLUSTER_SET_{name}" for name in new)


@pytest.mark.parametrize("profile", PROFILES)
def test_what_the_user_exported_before_loading_stays_then_and_after_unloading(modules, profile, tmp_path):
    before, loaded, after = (tmp_path / state for state in ("before", "loaded", "after"))
    own = " ".join(f"{name}='my own'" for name in settings(profile))
    modules.run(
        f"""export {own}
{SNAPSHOT.format(before)}
module load cluster/{profile}
{SNAPSHOT.format(loaded)}
module unload cluster/{profile}
{SNAPSHOT.format(after)}"""
    )
    assert values(loaded) == values(before)
    assert snapshot(after) == snapshot(before)


def test_one_own_export_is_no_reason_to_leave_out_the_rest(modules):
    output = modules.run(
        """export FI_MR_CACHE_MONITOR=disabled
module load cluster/lumi
echo $FI_MR_CACHE_MONITOR $SLURM_CPU_BIND
module unload cluster/lumi
echo $FI_MR_CACHE_MONITOR ${SLURM_CPU_BIND-gone}"""
    )
    assert output == "disabled none\ndisabled gone\n"


def test_a_value_given_after_loading_goes_with_the_module(modules):
    output = modules.run(
        """module load cluster/local
export SLURM_KILL_BAD_EXIT=0
module unload cluster/local
echo ${SLURM_KILL_BAD_EXIT-gone}"""
    )
    assert output == "gone\n"


def test_a_value_with_a_space_arrives_whole(modules):
    output = modules.run('module load cluster/lumi\nprintf "<%s>" "$PYTORCH_MULTI_NODE_NCCL_NET"')
    assert output == "<AWS Libfabric>"


def test_show_tells_every_setting(modules):
    for profile in PROFILES:
        result = modules.run_unchecked(f"module show cluster/{profile}")
        for name, value in settings(profile).items():
            assert re.search(rf"{name}\W+{re.escape(value)}\b", result.stderr), (profile, name, result.stderr)


def test_help_says_whose_value_wins(modules):
    for profile in PROFILES:
        result = modules.run_unchecked(f"module help cluster/{profile}")
        assert "What you export yourself wins." in " ".join(result.stderr.split())


def test_avail_lists_the_profiles_alone(modules):
    result = modules.run_unchecked("module -t avail cluster")
    listed = re.findall(r"^cluster/(\S+?)(?:\(\w+\))?$", result.stderr, re.MULTILINE)
    assert sorted(listed) == PROFILES
    assert "policy" not in result.stderr


def test_two_profiles_are_never_loaded_at_once(modules):
    output = modules.run_unchecked(
        "module load cluster/frontier; module load cluster/local; echo; echo ${FI_MR_CACHE_MONITOR-none} $LOADEDMODULES"
    )
    # Lmod replaces the first, Environment Modules refuse the second
    expected = "none cluster/local" if modules.name == "Lmod" else "kdreg2 cluster/frontier"
    assert output.stdout.splitlines()[-1] == expected


def test_a_copy_under_another_name_in_a_sites_own_directory_works(modules, tmp_path):
    directory = tmp_path / "cluster"
    directory.mkdir()
    for name, copy in ((".policy.tcl", ".policy.tcl"), ("infiniband", "ours")):
        shutil.copy(MODULEFILES / "cluster" / name, directory / copy)
    with (directory / "ours").open("a") as profile:
        profile.write("policy NCCL_IB_HCA =mlx5_0,mlx5_1\n")
    before, after = tmp_path / "before", tmp_path / "after"
    output = modules.run(
        f"""{SNAPSHOT.format(before)}
module load cluster/ours
echo $NCCL_IB_HCA $PYTORCH_MULTI_NODE_NCCL_NET
module unload cluster/ours
{SNAPSHOT.format(after)}""",
        tmp_path,
        MODULEFILES,
    )
    assert output == "=mlx5_0,mlx5_1 IB\n"
    assert snapshot(after) == snapshot(before)


def test_a_copy_without_the_file_beside_it_says_which_one_is_missing(modules, tmp_path):
    directory = tmp_path / "cluster"
    directory.mkdir()
    shutil.copy(MODULEFILES / "cluster" / "local", directory / "ours")
    result = modules.run_unchecked("module load cluster/ours", tmp_path)
    assert result.returncode
    assert f"{directory}/.policy.tcl" in "".join(result.stderr.split())


def test_a_sites_profile_earlier_on_the_path_wins(modules, tmp_path):
    directory = tmp_path / "cluster"
    directory.mkdir()
    shutil.copy(MODULEFILES / "cluster" / ".policy.tcl", directory)
    text = (MODULEFILES / "cluster" / "local").read_text()
    (directory / "local").write_text(text.replace("SLURM_KILL_BAD_EXIT 1", "SLURM_KILL_BAD_EXIT 0"))
    assert modules.run("module load cluster/local\necho $SLURM_KILL_BAD_EXIT", tmp_path, MODULEFILES) == "0\n"


@pytest.mark.parametrize("own", ["", "export EASYBUILD_PREFIX=/srv/mine EASYBUILD_ROBOT_PATHS=/srv/recipes"])
def test_the_bootstrap_module_keeps_to_the_same_rule(modules, own, tmp_path):
    before, loaded, after = (tmp_path / state for state in ("before", "loaded", "after"))
    modules.run(
        f"""{own}
{SNAPSHOT.format(before)}
module load pytorch-easybuild
{SNAPSHOT.format(loaded)}
module unload pytorch-easybuild
{SNAPSHOT.format(after)}"""
    )
    assert snapshot(after) == snapshot(before)
    new = values(loaded)
    assert new["EASYBUILD_PREFIX"] == ("/srv/mine" if own else f"{os.environ['HOME']}/.local/easybuild")
    assert new["EASYBUILD_ROBOT_PATHS"].startswith(f"{MODULEFILES.parent}/easyconfigs:")
    assert new["EASYBUILD_MODULES_TOOL"] == modules.name.replace(" ", "")


def test_srun_takes_its_binding_from_the_profile_and_an_option_wins(testbed):
    """With one CPU to each of two ranks of a node, as `srun -c1` gives them."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU leaves nothing to bind")
    cpus = "srun -N1 -n2 -c1 {} sh -c 'grep Cpus_allowed_list: /proc/self/status' | sort -u | wc -l"
    output = testbed.run(
        f"""{cpus.format("")}
module load cluster/lumi
{cpus.format("")}
{cpus.format("--cpu-bind=map_cpu:0,1")}"""
    )
    # two masks, one of all CPUs, two again
    assert output.split() == ["2", "1", "2"]
