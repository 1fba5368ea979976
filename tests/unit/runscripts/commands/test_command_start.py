"""How a command becomes Python: arguments, activation, and where it finds its files."""

import json
import shutil

import pytest
from command_environment import COMMANDS
from programs import program

SHOW_ARGUMENTS = "import json, sys; print(json.dumps(sys.argv))"


# Python's arguments


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (["-u"], ["train.py", "--lr", "0.1", "", "a b", "*", "--dry-run", "--help", "-"]),
        (["-W", "ignore", "-X", "dev"], ["train.py"]),
        (["-m", "package"], ["--lr", "0.1"]),
        (["-c", f'{SHOW_ARGUMENTS}\n# two  spaces, $HOME `id` "quoted" * \\'], ["train.py"]),
    ],
)
def test_arguments_reach_the_script_or_the_module_unchanged(run, either, home, options, arguments):
    (home / "package").mkdir()
    for script in ("train.py", "package/__main__.py"):
        (home / script).write_text(SHOW_ARGUMENTS)
    assert json.loads(run(either, *options, *arguments))[-len(arguments) :] == arguments


@pytest.mark.parametrize("arguments", [["-"], []])
def test_standard_input_is_the_program_where_no_script_is_named(run, either, arguments):
    assert run(either, *arguments, input="print(6 * 7)") == "42\n"


# Activation


def test_both_environments_are_activated_one_after_the_other(run, either, home):
    (home / "conda").write_text('export TRAIL="conda $1 of $#"; : $UNSET; false; true')
    (home / "venv").write_text('export TRAIL="$TRAIL, venv with $#"')
    env = {"WITH_CONDA": f"source {home}/conda env", "WITH_VENV": f"source {home}/venv"}
    trail = run(either, "-c", "import os; print(os.environ['TRAIL'])", env=env)
    assert trail == "conda env of 1, venv with 0\n"


def test_the_activated_python_is_the_one_that_runs(run, either, home):
    program(home / "bin" / "python", "echo activated")
    (home / "activate").write_text(f"PATH={home}/bin:$PATH")
    assert run(either, "-c", "", env={"WITH_VENV": f"source {home}/activate"}) == "activated\n"


@pytest.mark.parametrize("variable", ["WITH_CONDA", "WITH_VENV"])
def test_a_failed_activation_is_an_error(run_unchecked, either, variable):
    done = run_unchecked(either, "-c", "print(1)", env={variable: "source /does/not/exist"})
    assert (done.returncode, done.stdout) == (2, "")
    message = f"{either}: 'source /does/not/exist' failed. Correct or unset WITH_CONDA or WITH_VENV"
    assert done.stderr.splitlines()[-1] == message


def test_a_users_activation_alone_has_what_bash_env_defines(run, either, home):
    (home / "lmod").write_text("module() { export LOADED=$1; }; export READ=yes")
    env, code = {"BASH_ENV": f"{home}/lmod"}, "import os; print(os.environ.get('LOADED'), os.environ.get('READ'))"
    assert run(either, "-c", code, env=env) == "None None\n"
    assert run(either, "-c", code, env={**env, "WITH_VENV": "module cuda"}) == "cuda yes\n"


def test_a_shell_activates_both_itself_without_showing_them_its_arguments(run, runscripts, home):
    (home / "conda").write_text(': $UNSET; echo "conda $1 of $#"')
    (home / "venv").write_text('echo "venv with $#"; ACTIVE=$#')
    script = 'PATH=$1:$PATH; source init-conda-venv && echo "$ACTIVE and $# with $-"; declare -F'
    env = {"WITH_CONDA": f"source {home}/conda env", "WITH_VENV": f"source {home}/venv"}
    done = run("/bin/bash", "-uc", script, "job", str(runscripts), env=env)
    assert done == "conda env of 1\nvenv with 0\n0 and 1 with huBc\n"
    assert run("/bin/bash", "-uc", script.replace("$ACTIVE", "no"), "job", str(runscripts)) == "no and 1 with huBc\n"
    (home / "venv").write_text("false")
    script = 'PATH=$1:$PATH; source init-conda-venv || echo "failed $?"'
    assert run("/bin/bash", "-c", script, "job", str(runscripts), env=env).endswith("\nfailed 1\n")


# The active environment


# The way from the command to the package


def installed(runscripts, directory):
    """An install tree as a module has it: `runscripts/`, and links to its commands in `bin/`."""
    shutil.copytree(runscripts, directory / "runscripts", ignore=shutil.ignore_patterns("__pycache__"))
    (directory / "bin").mkdir()
    for command in COMMANDS:
        (directory / "bin" / command).symlink_to(f"../runscripts/{command}")
    return directory


#: Directory -> calls in it; the tree's path has a space.
CALLS = {
    "runscripts": ("./{0}", "bash {0}"),
    "bin": ("./{0}", "bash {0}"),
    ".": (
        "runscripts/{0}",
        "bash bin/{0}",
        "PATH=$PWD/bin:$PATH {0}",
        "PATH=$PWD/bin:$PATH bash {0}",
        "PATH=bin:$PATH {0}",
    ),
    "/": ("'{1}/bin/{0}'",),
}


def test_a_command_finds_its_files_however_it_is_called(run, runscripts, tmp_path, either):
    tree = installed(runscripts, tmp_path / "install tree")
    for directory, calls in CALLS.items():
        lines = "\n".join(f"({call.format(either, tree)} -c 'print(7)')" for call in calls)
        assert run("/bin/bash", "-c", lines, cwd=tree / directory) == "7\n" * len(calls)


def test_modules_of_the_user_do_not_reach_the_launcher(run, run_unchecked, home, step):
    """With -I the final Python is clean, so that only the launcher could stumble."""
    poison = home / "poison"
    poison.mkdir()
    for name in ("os", "sys", "stat", "posixpath", "world", "launch", "pytorch_launch", "site"):
        (poison / f"{name}.py").write_text(f"raise SystemExit('poisoned {name}')")
    env = {**step, "PYTHONPATH": str(poison), "PYTHONHOME": str(poison)}
    done = run_unchecked("conda-python-distributed", "-I", "-c", "print('clean')", env=env, cwd=poison)
    assert done.stdout == "clean\n"
    assert run("get-master", "n[1-2]", env=env, cwd=poison) == "n1\n"


def test_a_command_by_its_path_uses_the_environment_that_it_belongs_to(run_unchecked, runscripts, tmp_path, step):
    """As with `srun --export=NONE`, which passes no variable of the module on."""
    tree = installed(runscripts, tmp_path / "tree")
    (tree / "venv").mkdir()
    (tree / "venv" / "activate").write_text("export ACTIVE=yes")
    recorded = f"export RUNSCRIPTS={tree}/runscripts WITH_CONDA=true WITH_VENV='source {tree}/venv/activate'"
    (tree / "module.bash").write_text(f"{recorded} PYTHONUSERBASE=/mine\n")
    code = "import os; print(os.environ['ACTIVE'], os.environ['PYTHONUSERBASE'])"
    for place in ("runscripts", "bin"):
        done = run_unchecked(str(tree / place / "conda-python-distributed"), "-c", code, env={"OMP_NUM_THREADS": "1"})
        assert done.stdout == "yes /mine\n"
        assert done.stderr == (
            "conda-python-distributed: the module is not loaded: using its Python without the settings of its cluster "
            "profile. Load it in the job script\n"
        )
    other = run_unchecked(str(tree / "bin" / "conda-python-distributed"), "-c", code, env=step)
    assert (other.stdout, other.stderr) == ("yes /mine\n", "")
    loaded = run_unchecked(str(tree / "bin" / "conda-python-distributed"), "-c", code, env={"RUNSCRIPTS": "/loaded"})
    assert "KeyError: 'ACTIVE'" in loaded.stderr
