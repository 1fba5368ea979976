"""The cluster profiles under Lmod and Environment Modules: what loading sets, and that unloading undoes it."""

import os
import re
import shutil

import pytest

from testbed.module_systems import MODULEFILES, SNAPSHOT, snapshot, values

pytestmark = pytest.mark.testbed

PROFILES = sorted(path.name for path in (MODULEFILES / "cluster").iterdir() if not path.name.startswith("."))


def settings(profile):
    """The variables that a profile's text sets, and those that every profile sets: name -> value."""
    texts = [(MODULEFILES / "cluster" / name).read_text() for name in (".policy.tcl", profile)]
    found = re.findall(r"^(?:policy|    default_policy) (\w+) (.+)$", "\n".join(texts), re.MULTILINE)
    return {name: value.strip('"') for name, value in found}


@pytest.fixture(scope="session", params=["Lmod", "Environment Modules"])
def modules(request, module_system):
    """Each of the two module systems."""
    return module_system(request.param)


@pytest.mark.parametrize("profile", PROFILES)
def test_loading_sets_the_values_of_the_file_and_unloading_leaves_the_environment_as_it_was(modules, profile, tmp_path):
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


@pytest.mark.parametrize(
    ("runtime", "profile", "expected"),
    [
        ("ROCm 6.0", "lumi", "built for ROCm 6.0, and the site's driver supports 6.1 to 7.0"),
        ("ROCm 7.0", "lumi", None),
        ("CUDA 13.2", "perlmutter", None),
        ("ROCm 6.0", "local", None),
    ],
)
def test_one_sentence_at_load_reports_a_cuda_or_rocm_that_the_driver_does_not_support(
    modules, runtime, profile, expected
):
    result = modules.run_unchecked(
        f'''export __PYTORCH_RUNTIME="{runtime}"
module load cluster/{profile}
echo loaded >&2
module show cluster/{profile} >/dev/null 2>&1
module unload cluster/{profile}'''
    )
    assert result.returncode == 0
    message = result.stderr.split("loaded\n")
    assert len(message) == 2 and "PyTorch" not in message[1], result.stderr
    assert (expected in " ".join(message[0].split())) if expected else "PyTorch" not in message[0], result.stderr


def test_show_lists_every_setting(modules):
    for profile in PROFILES:
        result = modules.run_unchecked(f"module show cluster/{profile}")
        for name, value in settings(profile).items():
            assert re.search(rf"{name}\W+{re.escape(value)}\b", result.stderr), (profile, name, result.stderr)


def test_help_explains_whose_value_takes_precedence(modules):
    for profile in PROFILES:
        result = modules.run_unchecked(f"module help cluster/{profile}")
        assert "Variables that you export before loading take precedence." in " ".join(result.stderr.split())


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


def test_a_copy_without_the_file_beside_it_reports_which_one_is_missing(modules, tmp_path):
    directory = tmp_path / "cluster"
    directory.mkdir()
    shutil.copy(MODULEFILES / "cluster" / "local", directory / "ours")
    result = modules.run_unchecked("module load cluster/ours", tmp_path)
    assert result.returncode
    assert f"{directory}/.policy.tcl" in "".join(result.stderr.split())


#: A profile that a site copied before the procedure `policies_of_every_cluster` existed.
EARLIER_PROFILE = """#%Module
# Cluster profile for our machine.

module-whatis "Cluster profile: our machine"

conflict cluster
source [file join [file dirname $ModulesCurrentModulefile] .policy.tcl]

policy SLURM_KILL_BAD_EXIT 0
policy PYTORCH_DISTRIBUTED_RES_OPTIONS "timeout:2 attempts:2"
"""


def test_a_sites_profile_of_an_earlier_version_on_the_path_before_ours_wins(modules, tmp_path):
    directory = tmp_path / "cluster"
    directory.mkdir()
    shutil.copy(MODULEFILES / "cluster" / ".policy.tcl", directory)
    (directory / "local").write_text(EARLIER_PROFILE)
    before, after = tmp_path / "before", tmp_path / "after"
    output = modules.run(
        f"""{SNAPSHOT.format(before)}
module load cluster/local
echo $SLURM_KILL_BAD_EXIT $PYTORCH_DISTRIBUTED_RES_OPTIONS
module unload cluster/local
{SNAPSHOT.format(after)}""",
        tmp_path,
        MODULEFILES,
    )
    assert output == "0 timeout:2 attempts:2\n"
    assert snapshot(after) == snapshot(before)


@pytest.mark.parametrize(("own", "expected"), [("", "0"), ("export SLURM_KILL_BAD_EXIT=2", "2")])
def test_a_sites_line_overrides_what_every_profile_sets_but_not_the_users_export(modules, tmp_path, own, expected):
    directory = tmp_path / "cluster"
    directory.mkdir()
    shutil.copy(MODULEFILES / "cluster" / ".policy.tcl", directory)
    text = (MODULEFILES / "cluster" / "local").read_text()
    (directory / "ours").write_text(text + "policy SLURM_KILL_BAD_EXIT 0\n")
    before, after = tmp_path / "before", tmp_path / "after"
    output = modules.run(
        f"""{own}
{SNAPSHOT.format(before)}
module load cluster/ours
module load cluster/ours
echo $SLURM_KILL_BAD_EXIT $PYTORCH_DISTRIBUTED_RES_OPTIONS
module unload cluster/ours
{SNAPSHOT.format(after)}""",
        tmp_path,
        MODULEFILES,
    )
    assert output == f"{expected} timeout:1 attempts:1\n"
    assert snapshot(after) == snapshot(before)


#: EasyBuild's settings: the name that the test has -> the shell's own exports, and a user's configuration file.
RECIPES = MODULEFILES.parent / "easyconfigs"
BLOCKS = MODULEFILES.parent / "easyblocks" / "*.py"
SITES_FILE = """[config]
prefix = %(BASE)s/prefix
sourcepath: /srv/sources
module-syntax = Tcl
[basic]
robot-paths = /srv/recipes:%(DEFAULT_ROBOT_PATHS)s
[override]
include-easyblocks=/srv/easyblocks/*.py
[DEFAULT]
BASE = /srv
"""


@pytest.mark.parametrize(
    ("own", "file", "expected", "modulepath"),
    [
        pytest.param(
            "", "",
            {"ROBOT_PATHS": f"{RECIPES}:", "INCLUDE_EASYBLOCKS": f"{BLOCKS}", "PREFIX": None, "SOURCEPATH_DATA": None},
            ["{home}/.local/easybuild/modules/all"], id="none",
        ),
        pytest.param(
            "export EASYBUILD_PREFIX=/srv/mine EASYBUILD_SOURCEPATH=/srv/s EASYBUILD_ROBOT_PATHS=/srv/recipes", "",
            {"ROBOT_PATHS": f"{RECIPES}:/srv/recipes", "PREFIX": "/srv/mine", "SOURCEPATH_DATA": "/srv/s"},
            ["/srv/mine/modules/all"], id="exported",
        ),
        pytest.param(
            "", SITES_FILE,
            {"ROBOT_PATHS": f"{RECIPES}:/srv/recipes:", "INCLUDE_EASYBLOCKS": f"{BLOCKS},/srv/easyblocks/*.py",
             "PREFIX": None, "SOURCEPATH": None, "SOURCEPATH_DATA": "/srv/sources", "MODULE_SYNTAX": None},
            ["/srv/prefix/modules/all"], id="in a configuration file",
        ),
        pytest.param(
            "export EASYBUILD_PREFIX=/srv/mine", SITES_FILE, {"PREFIX": "/srv/mine"},
            ["/srv/mine/modules/all"], id="exported over a configuration file",
        ),
        pytest.param(
            "export EASYBUILD_MODULE_NAMING_SCHEME=HierarchicalMNS EASYBUILD_INSTALLPATH=/srv/i", "", {},
            ["/srv/i/modules/all/Core"], id="hierarchical",
        ),
        pytest.param(
            "", "[config]\nmodule-naming-scheme = CategorizedHMNS\ninstallpath-modules = /srv/m\n", {},
            ["/srv/m/all/Core/ai", "/srv/m/all/Core/data"], id="hierarchical with classes",
        ),
    ],
)  # fmt: skip
def test_the_bootstrap_module_leaves_easybuilds_settings_as_they_are(
    modules, tmp_path, own, file, expected, modulepath
):
    before, loaded, after = (tmp_path / state for state in ("before", "loaded", "after"))
    config = tmp_path / ".config" / "easybuild" / "config.cfg"
    config.parent.mkdir(parents=True)
    config.write_text(file)
    result = modules.run_unchecked(
        f"""set -e
export HOME={tmp_path}
{own}
{SNAPSHOT.format(before)}
module load pytorch-easybuild
{SNAPSHOT.format(loaded)}
module load pytorch-easybuild
module unload pytorch-easybuild
{SNAPSHOT.format(after)}"""
    )
    assert result.returncode == 0, result.stderr
    assert snapshot(after) == snapshot(before)
    new = values(loaded)
    assert {name: new.get(f"EASYBUILD_{name}") for name in expected} == expected
    assert new["EASYBUILD_MODULES_TOOL"] == modules.name.replace(" ", "")
    tops = [path.format(home=tmp_path) for path in modulepath]
    assert new["MODULEPATH"].split(":")[: len(tops)] == tops
    place = "/srv/prefix/software, as set in" if file == SITES_FILE else f"{tmp_path}/.local"
    message = f"software will be installed in {place}"
    assert (message in result.stderr) is not any(name in own for name in ("_PREFIX", "_INSTALLPATH")), result.stderr


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
