"""Commands of a container module's bin/ on the host: each becomes the runtime, which starts it in the image."""

import os
import subprocess
from pathlib import Path

import pytest


def test_a_rank_becomes_the_runtime_itself_and_its_variables_reach_the_command(installed):
    variables = {"SLURM_JOB_ID": "7", "SLURM_STEP_TASKS_PER_NODE": "8(x2),4", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}
    rank = installed.start("env", "-0", **installed.loaded, **variables)
    output, errors = rank.communicate()
    process, runtime, verb, option, here, image, environment = output.split("\n", 6)
    assert (int(process), runtime, verb) == (rank.pid, "singularity", "exec")
    assert (option, here, image) == ("--pwd", os.path.realpath(installed.work), str(installed.image))
    assert (rank.returncode, errors) == (0, "")
    given = dict(entry.split("=", 1) for entry in environment.split("\0") if entry)
    own = {"PWD", "SHLVL", "_", "OLDPWD", "HOME", "PATH", "APPTAINER_CONTAINER"}
    assert given.keys() - own == {*installed.loaded, *variables}
    assert given.items() >= variables.items()


def test_a_working_directory_is_entered_by_its_physical_path_and_one_that_is_gone_is_an_error(installed, tmp_path):
    (tmp_path / "link").symlink_to(installed.work)
    rank = installed.start("pwd", cwd=tmp_path / "link", PWD=str(tmp_path / "link"), **installed.loaded)
    assert rank.communicate()[0].splitlines()[-1] == os.path.realpath(installed.work)
    gone = installed.work / "gone"
    env = {"PATH": "/usr/bin:/bin", **installed.loaded}
    gone.mkdir()
    command = ["bash", "-c", 'cd "$1" && rmdir "$1" && exec "$2"', "bash", gone, installed.root / "bin" / "pwd"]
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert "pwd: the working directory is gone. Change to another one\n" in result.stderr


@pytest.mark.parametrize("before", ["nothing", "another module"])
def test_without_the_module_a_command_has_what_the_module_sets(installed, before):
    certificate = installed.work / "ca.pem"
    certificate.touch()
    variables = {"PIP_CERT": str(certificate), "HF_HOME": str(installed.work)}
    if before == "another module":
        variables.update(CONTAINERROOT="/other", SIFPYTORCH="/other.sif", APPTAINER_BIND="/mine")
        names = ("APPTAINER_BINDPATH", "__PYTORCH_ADDED_TO_APPTAINER_BINDPATH")
        variables.update(dict.fromkeys(names, "/other:/runscripts"))
    given = installed.environment(**variables)
    root = installed.root
    store = installed.user_software
    binds = f"{root}/runscripts:/runscripts,{root}/payload:/payload,/usr,{certificate},{store}:/user-software"
    assert given["APPTAINER_BINDPATH"] == given["SINGULARITY_BINDPATH"] == binds
    assert given["SIFPYTORCH"] == str(installed.image) == given["APPTAINER_CONTAINER"]
    assert given["CONTAINERROOT"] == str(root) and given["RUNSCRIPTS"] == f"{root}/runscripts"
    assert given["PYTHONUSERBASE"] == f"{installed.work}/.local/mine-1234"
    assert given["APPTAINERENV_PREPEND_PATH"].startswith("/runscripts:/user-software/venv/pytorch/bin:")
    assert given["SINGULARITY_NV"] == "1"
    assert given.get("APPTAINER_BIND", "").strip(",") == ("" if before == "nothing" else "/mine")


@pytest.mark.parametrize("name", ["APPTAINER_BIND", "SINGULARITY_BIND"])
def test_a_job_that_an_image_submitted_names_the_line_that_it_begins_with(installed, name):
    variables = {**installed.loaded, name: "/mine,/runscripts,/payload"}
    rank = installed.start("env", **variables)
    assert rank.communicate()[1].endswith("Start the job with: unset APPTAINER_BIND SINGULARITY_BIND\n")
    assert rank.returncode == 2
    note = {"__PYTORCH_ADDED_TO_APPTAINERENV_PREPEND_PATH": "/runscripts:/x"}  # nor has it the image's variables
    given = installed.environment(**installed.loaded, **note)
    assert given["APPTAINERENV_PREPEND_PATH"] == "/runscripts:/x"
    given = installed.environment(**installed.loaded, **note, APPTAINERENV_PREPEND_PATH="/user-software/bin")
    assert given["APPTAINERENV_PREPEND_PATH"] == "/user-software/bin"


def test_the_runtime_of_the_installation_is_used_if_path_has_none(installed):
    (installed.root / "bin" / "true").symlink_to("../libexec/enter")
    rank = installed.start("true", path="/nowhere", **installed.loaded)
    assert rank.communicate()[0].splitlines()[1] == "singularity"
    (installed.runtime / "singularity").unlink()
    rank = installed.start("true", path="/nowhere", **installed.loaded)
    message = "true: neither apptainer nor singularity found on PATH. Load the module that has it\n"
    assert (rank.communicate()[1], rank.returncode) == (message, 127)


def test_another_pythons_packages_stay_out_and_the_users_own_code_stays(installed, tmp_path):
    foreign = tmp_path / "lib/python3.9/site-packages"
    foreign.mkdir(parents=True)
    path = f"{foreign}:/my/code:/in/the/image/site-packages"
    fault = f"env: ignoring {foreign} of PYTHONPATH, which belongs to another Python. To keep it, export"
    env = {"PYTHONHOME": "/other", "PYTHONPATH": path, **installed.loaded}
    given = installed.environment(f"{fault} PYTORCH_LAUNCH_KEEP_PATHS=1\n", **env)
    assert given["PYTHONPATH"] == "/my/code:/in/the/image/site-packages" and "PYTHONHOME" not in given
    kept = installed.environment("", PYTORCH_LAUNCH_KEEP_PATHS="1", **env)
    assert (kept["PYTHONHOME"], kept["PYTHONPATH"]) == ("/other", path)
    rank = installed.start("true", PYTORCH_LAUNCH_KEEP_PATHS="false", **installed.loaded)
    message = "true: PYTORCH_LAUNCH_KEEP_PATHS=false is neither 0 nor 1. Correct or unset it\n"
    assert (rank.communicate()[1], rank.returncode) == (message, 2)


def test_after_pip_the_host_has_links_for_the_commands_of_users_packages(installed):
    """In place of pip: a program that installs a command, or removes it."""
    of_root = Path("/commands").exists()
    pip = installed.runtime / "pip"
    directory = installed.user_software / "venv/pytorch/bin"
    pip.write_text(f'#!/bin/bash\nmkdir -p {directory}; cd {directory}; "$@"; exit 4\n')
    pip.chmod(0o755)
    path = f"{installed.runtime}:/usr/bin:/bin"
    install = "touch accelerate pip-compile python3 activate.fish pip; chmod +x *; touch data"
    rank = installed.start("pip", "bash", "-c", install, path=path, **installed.loaded)
    assert (rank.communicate()[1], rank.returncode) == ("", 4)
    commands = installed.user_software.with_name("1.0.commands")
    assert sorted(path.name for path in commands.iterdir()) == ["accelerate", "pip-compile"]
    assert (commands / "accelerate").resolve() == (installed.root / "libexec" / "enter").resolve()
    installed.start("pip", "rm", "accelerate", "pip-compile", path=path, **installed.loaded).communicate()
    assert list(commands.iterdir()) == []
    assert sorted(path.name for path in directory.iterdir()) == ["activate.fish", "data", "pip", "python3"]
    assert Path("/commands").exists() == of_root  # beside /bin, if PYTHONUSERBASE were taken as set
