"""The Python of the image that is built here, and the image as a place to work in, as users type it."""

import pytest

pytestmark = [pytest.mark.testbed, pytest.mark.early]

#: A torch in a home directory, which nobody may get.
OLD_TORCH = 'raise SystemExit("the torch of ~/.local")\n'


@pytest.fixture
def run(testbed, container, work):
    """A function that runs a script with the container module loaded, in an empty directory and an empty home."""
    (work / "home").mkdir()

    def run(script):
        return testbed.run(f"export HOME={work}/home; module load {container}; cd {work}; {script}")

    return run


def test_the_image_has_one_release_of_each_package_and_no_setting_of_its_build(run):
    output = run("""for name in python /usr/bin/python3; do singularity exec --cleanenv $SIF $name -m pip check; done
singularity exec --cleanenv $SIF sh -c 'ls -d /usr/local/lib/python3.11/dist-packages/setuptools-*'
singularity exec --cleanenv --no-home $SIF /usr/bin/python3 -m pip config list""")
    *checks, setuptools = output.splitlines()
    assert checks == ["No broken requirements found."] * 2
    assert setuptools.count("dist-info") == 1


@pytest.mark.parametrize(
    "python",
    ["$PWD/v/bin/python", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("python", "/usr/bin/python3"))],
)
def test_a_torch_in_the_home_directory_never_precedes_that_of_the_image(run, work, python):
    packages = work / "home/.local/lib/python3.11/site-packages"
    (packages / "torch").mkdir(parents=True)
    (packages / "torch/__init__.py").write_text(OLD_TORCH)
    output = run(f"""singularity exec $SIF python -m venv --without-pip --system-site-packages v
singularity exec --cleanenv --home $HOME $SIF {python} -c '
import importlib.util; print(importlib.util.find_spec("torch").origin)'""")
    assert output == "/usr/local/lib/python3.11/dist-packages/torch/__init__.py\n"


def test_run_runs_a_command_or_python(run):
    output = run("""singularity run $SIF printf '<%s>' 'a b' ''; echo 'print("in")' | singularity run $SIF
singularity run $SIF python -c 'print(1)'; singularity run $SIF false || echo status $?""")
    assert output == "<a b><>in\n1\nstatus 1\n"


def test_the_tools_of_daily_work_and_the_places_of_binds_are_in_the_image(run):
    tools = "git curl less make ps ssh"
    output = run(f"""singularity exec $SIF sh -c 'for name in {tools}; do command -v $name; done' | wc -l
env -u SINGULARITY_BINDPATH -u APPTAINER_BINDPATH -u SINGULARITY_BIND -u APPTAINER_BIND \
    singularity exec $SIF sh -c 'ls -A /runscripts /payload /user-software'""")
    assert output.split() == ["6", "/payload:", "/runscripts:", "/user-software:"]
