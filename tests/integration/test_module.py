"""The module's interface under Lmod: what loading sets, and that unloading brings everything back."""

import re

import pytest

pytestmark = pytest.mark.testbed

#: Lmod's own records of what is loaded; it keeps some of them after unloading (lmod.readthedocs.io).
BOOKKEEPING = re.compile(r"^(_ModuleTable\d+_|_ModuleTable_Sz_|__LMOD_\w+)=")
SNAPSHOT = "env --null | sort --zero-terminated > {}"


def snapshot(path):
    """The environment that `env` wrote, without Lmod's bookkeeping, as a list of NAME=VALUE."""
    return [entry for entry in path.read_text().split("\0") if entry and not BOOKKEEPING.match(entry)]


@pytest.mark.parametrize(
    "own",
    [
        "",
        "export SINGULARITY_BIND=/opt:/mnt/opt:ro,/srv",
        "export APPTAINER_BIND=/opt:/mnt/opt SINGULARITY_BIND=/srv:/mnt/srv",
        "export SINGULARITYENV_PREPEND_PATH=/opt/bin SLURM_KILL_BAD_EXIT=0",
        "export SIF='my own' RUNSCRIPTS=mine PAYLOAD=mine PYTHONUSERBASE=/x WITH_CONDA='source x y'",
    ],
    ids=["nothing", "binds", "binds-twice", "lists", "names"],
)
def test_unloading_leaves_the_environment_as_it_was_and_loading_twice_changes_nothing(testbed, module, own, tmp_path):
    states = ["before", "loaded", "twice", "after"]
    before, loaded, twice, after = (tmp_path / state for state in states)
    testbed.run(
        f"""{own}
{SNAPSHOT.format(before)}
module load {module}
{SNAPSHOT.format(loaded)}
module load {module}
{SNAPSHOT.format(twice)}
module unload {module}
{SNAPSHOT.format(after)}"""
    )
    assert snapshot(after) == snapshot(before)
    assert snapshot(twice) == snapshot(loaded)
    assert snapshot(loaded) != snapshot(before)


def test_the_module_loads_with_nothing_but_easybuilds_modules_on_the_path(testbed, module):
    output = testbed.run(
        f"""module purge
module unuse "$MODULEPATH"
export MODULEPATH={testbed.layout.modules}
module load {module}
echo "$CONTAINERROOT"; ls "$RUNSCRIPTS" "$PAYLOAD"; echo "$SLURM_KILL_BAD_EXIT" """
    )
    assert module in output.splitlines()[0]
    assert "conda-python-distributed" in output
    assert "mnist_ddp.py" in output
    assert output.splitlines()[-1] == "1"


def test_the_users_own_setting_wins_over_the_cluster_profile(testbed, module):
    output = testbed.run(f"export SLURM_KILL_BAD_EXIT=0\nmodule load {module}\necho $SLURM_KILL_BAD_EXIT")
    assert output == "0\n"


def test_the_users_own_binds_work_beside_the_modules(testbed, container, tmp_path):
    (tmp_path / "own").write_text("mine\n")
    for name in ("SINGULARITY_BIND", "APPTAINER_BIND"):
        result = testbed.run_unchecked(
            f"""export {name}={tmp_path}:/mnt
module load {container}
singularity exec $SIF sh -c 'cat /mnt/own && ls /runscripts /payload && ls -d {testbed.layout.easybuild}/software'"""
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout.startswith("mine\n")
        assert "conda-python-distributed" in result.stdout
        assert "WARNING" not in result.stderr


def test_runscripts_and_payload_in_the_image_are_the_files_on_the_host(testbed, container):
    output = testbed.run(
        f"""module load {container}
singularity exec $SIF sh -c 'command -v conda-python-distributed; cat /runscripts/get-master /payload/mnist_ddp.py' |
  sha256sum
{{ echo /runscripts/conda-python-distributed; cat $RUNSCRIPTS/get-master $PAYLOAD/mnist_ddp.py; }} | sha256sum"""
    )
    inside, outside = output.splitlines()
    assert inside == outside


def test_installing_with_pip_user_goes_to_a_directory_of_this_user_and_module(testbed, module, enter, tmp_path):
    output = testbed.run(
        f"""export HOME={tmp_path}
module load {module}
{enter}conda-python-simple -c 'import site; print(site.getuserbase())'"""
    )
    assert output == f"{tmp_path}/.local/easybuild/{module}\n"


def test_a_deleted_image_makes_loading_fail_with_a_sentence_that_says_what_to_do(testbed, container):
    result = testbed.run_unchecked(
        f"""module load {container} && image=$SIF && module unload {container}
mv "$image" "$image.away"
module load {container}
status=$?
echo "status $status SIF=${{SIF:-}}"
mv "$image.away" "$image"
module load {container} && echo "again $SIF" """
    )
    message = " ".join(result.stderr.split())  # Lmod breaks lines
    assert "There is no image at " in message
    assert "install it again with `eb --rebuild PyTorch-2.13.0-cpu-singularity.eb`" in message
    status = re.search(r"status (\d+) SIF=(.*)", result.stdout)
    assert status[1] != "0"
    assert status[2] == ""
    assert f"again {testbed.layout.easybuild}" in result.stdout


def test_module_spider_and_avail_know_both_modules(testbed, container, venv):
    result = testbed.run_unchecked("module -t avail PyTorch; module -t spider PyTorch")
    for name in (container, venv):
        assert result.stderr.count(name) >= 2


def test_loading_the_other_pytorch_replaces_the_first(testbed, container, venv):
    output = testbed.run(f"module load {container}\nmodule load {venv}\nmodule -t list 2>&1\necho SIF=${{SIF:-}}")
    assert venv in output
    assert container not in output.replace("reloaded", "")
    assert output.endswith("SIF=\n")


def test_the_container_commands_in_bin_keep_exit_status_and_arguments(testbed, container):
    result = testbed.run_unchecked(
        f"""module load {container}
python -c 'import sys; print(sys.argv[1:], sys.prefix)' 'two words'; python -c 'raise SystemExit(5)'"""
    )
    assert result.stdout == "['two words'] /opt/pytorch\n"
    assert result.returncode == 5


def test_a_container_command_without_its_module_says_what_to_load(testbed, container):
    result = testbed.run_unchecked(
        f"module load {container}; bin=$CONTAINERROOT/bin; module unload {container}\n$bin/python"
    )
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "load a PyTorch container module" in result.stderr


@pytest.mark.parametrize("syntax", ["Tcl", "Lua"])
def test_the_bootstrap_module_alone_lets_eb_find_recipes_easyblocks_sources_and_prefix(testbed, tmp_path, syntax):
    output = testbed.run(
        f"""module unload pytorch-easybuild
unset EASYBUILD_SOURCEPATH
export EASYBUILD_PREFIX={tmp_path} EASYBUILD_MODULE_SYNTAX={syntax}
module load pytorch-easybuild
eb --show-config; eb --dry-run PyTorch-2.13.0-cpu-venv.eb; echo $MODULEPATH"""
    )
    repository = testbed.layout.repository
    assert re.search(rf"robot-paths +\(E\) = {repository}/easyconfigs", output)
    assert re.search(rf"include-easyblocks +\(E\) = {repository}/easyblocks/\*\.py", output)
    assert re.search(rf"sourcepath +\(E\) = {tmp_path}/sources", output)
    assert "PyTorch/2.13.0-cpu-venv" in output
    assert f"{tmp_path}/modules/all" in output
