"""The cluster profiles under Lmod and Environment Modules: what loading sets, and that unloading undoes it."""

import os
import re

import pytest
from recorded_environment import recorded

from testbed.module_systems import MODULEFILES, snapshot, values

pytestmark = pytest.mark.testbed
PROFILES = sorted(path.name for path in (MODULEFILES / "cluster").iterdir() if not path.name.startswith("."))


def settings(profile):
    """The variables that a profile's text sets, and those that every profile sets: name -> value.

    Without PYTORCH_BIND, whose value depends on the machine: tests/unit/modulefiles has its tests.
    """
    texts = [(MODULEFILES / "cluster" / name).read_text() for name in (".policy.tcl", profile)]
    found = re.findall(r"^(?:policy|    default_policy) (\w+) (.+)$", "\n".join(texts), re.MULTILINE)
    return {name: value.strip('"') for name, value in found}


@pytest.mark.parametrize("profile", PROFILES)
def test_loading_sets_the_values_of_the_file_and_unloading_leaves_the_environment_as_it_was(modules, profile, tmp_path):
    load = f"module load cluster/{profile}"
    script, before, loaded, twice, after = recorded(tmp_path, "", load, load, f"module unload cluster/{profile}")
    modules.run(script)
    assert snapshot(after) == snapshot(before)
    assert values(twice) == values(loaded)
    new = {name: value for name, value in values(loaded).items() if name not in values(before)}
    new = {name: value for name, value in new.items() if not name.endswith("PYTORCH_BIND")}
    notes = {name: new.pop(name) for name in list(new) if name.startswith("__CLUSTER_SET_")}
    assert new == settings(profile)
    assert sorted(notes) == sorted(f"__CLUSTER_SET_{name}" for name in new)


@pytest.mark.parametrize(
    "profile",
    # all use the same procedure
    ["lumi", *(pytest.param(name, marks=pytest.mark.thorough) for name in PROFILES if name != "lumi")],
)
def test_what_the_user_exported_before_loading_stays_then_and_after_unloading(modules, profile, tmp_path):
    own = " ".join(f"{name}='my own'" for name in settings(profile))
    steps = f"export PYTORCH_BIND=0 {own}", f"module load cluster/{profile}", f"module unload cluster/{profile}"
    script, before, loaded, after = recorded(tmp_path, *steps)
    modules.run(script)
    assert values(loaded) == values(before)
    assert snapshot(after) == snapshot(before)


def test_loading_alone_reports_a_rocm_that_the_driver_does_not_support(modules):
    """tests/unit/modulefiles/test_profile_reports.py has what is reported."""
    result = modules.run_unchecked(
        """export __PYTORCH_RUNTIME="ROCm 6.0"
module load cluster/lumi
echo loaded >&2
module show cluster/lumi >/dev/null 2>&1
module unload cluster/lumi"""
    )
    assert result.returncode == 0
    loading, others = result.stderr.split("loaded\n")
    assert "built for ROCm 6.0, and the site's driver supports 6.1 to 7.0" in " ".join(loading.split())
    assert "PyTorch" not in others


def test_two_profiles_are_never_loaded_at_once(modules):
    output = modules.run_unchecked(
        "module load cluster/frontier; module load cluster/local; echo; echo ${FI_MR_CACHE_MONITOR-none} $LOADEDMODULES"
    )
    # Lmod replaces the first, Environment Modules refuse the second
    expected = "none cluster/local" if modules.name == "Lmod" else "kdreg2 cluster/frontier"
    assert output.stdout.splitlines()[-1] == expected


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
