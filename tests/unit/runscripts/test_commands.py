"""The commands as users start them: real bash, real Python, a synthetic environment."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = ("conda-python-simple", "conda-python-distributed", "torchrun-distributed", "ddp-env", "get-master")
PYTHON_DIRECTORY = str(Path(sys.executable).parent)
PATH = f"{PYTHON_DIRECTORY}:/usr/bin:/bin"
SHOW_ARGUMENTS = "import json, sys; print(json.dumps(sys.argv))"
SHOW_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"
TORCH_VARIABLES = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PYTORCH_LAUNCH_ID",
    "OMP_NUM_THREADS",
}
CACHE_VARIABLES = {
    "MIOPEN_USER_DB_PATH",
    "MIOPEN_CUSTOM_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "AITER_JIT_DIR",
}


@pytest.fixture
def home(tmp_path):
    """The working directory of the commands, and beside it their `TMPDIR`."""
    (tmp_path / "home").mkdir()
    (tmp_path / "tmp").mkdir()
    return tmp_path / "home"


@pytest.fixture
def run_unchecked(runscripts, home):
    """Run a command of `runscripts`, or another program, in exactly the given environment."""

    def run(command, *arguments, env=None, **options):
        program = str(runscripts / command) if command in COMMANDS else command
        return subprocess.run(
            [program, *arguments],
            env={"PATH": PATH, "TMPDIR": str(home.parent / "tmp"), **(env or {})},
            cwd=options.pop("cwd", home),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **options,
        )

    return run


@pytest.fixture
def run(run_unchecked):
    """The same for a command that succeeds in silence; returns its output."""

    def checked(*arguments, **options):
        done = run_unchecked(*arguments, **options)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return checked


@pytest.fixture(params=["conda-python-simple", "conda-python-distributed"])
def either(request):
    """What holds for both commands that run Python."""
    return request.param


def dry_run(run, env):
    lines = run("conda-python-distributed", "--dry-run", env=env).splitlines()
    assert lines == sorted(lines)
    return dict(line.split("=", 1) for line in lines)


# Python's arguments


@pytest.mark.parametrize(
    "code",
    ["print('two  spaces')", 'print("$HOME `id` \\"quoted\\" * \\\\")', "print('a\\nb')", ""],
)
def test_code_reaches_python_letter_by_letter(run, either, code):
    expected = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run(either, "-c", code) == expected.stdout


def test_arguments_reach_the_script_unchanged(run, either, home):
    (home / "train.py").write_text(SHOW_ARGUMENTS)
    arguments = ["train.py", "--lr", "0.1", "", "a b", "*", "--dry-run", "--help", "-"]
    assert json.loads(run(either, "-u", *arguments)) == arguments


def test_a_module_is_run(run, either, home):
    (home / "package").mkdir()
    (home / "package" / "__main__.py").write_text(SHOW_ARGUMENTS)
    assert json.loads(run(either, "-m", "package", "--lr", "0.1"))[1:] == ["--lr", "0.1"]


@pytest.mark.parametrize("arguments", [["-"], []])
def test_standard_input_is_the_program_where_no_script_is_named(run, either, arguments):
    assert run(either, *arguments, input="print(6 * 7)") == "42\n"


def test_options_that_take_a_value_do_not_hide_the_script(run, home):
    (home / "train.py").write_text(SHOW_ARGUMENTS)
    options = ["-W", "ignore", "-X", "dev", "--check-hash-based-pycs", "never"]
    assert json.loads(run("conda-python-distributed", *options, "train.py")) == ["train.py"]


# Processes


def test_the_exit_status_is_pythons(run_unchecked, either):
    assert run_unchecked(either, "-c", "raise SystemExit(42)").returncode == 42


def test_python_is_the_process_that_was_started_and_gets_its_signals(runscripts, either, home):
    program = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(17))\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen(
        [runscripts / either, "-c", program],
        env={"PATH": PATH, "TMPDIR": str(home)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGUSR1)
        assert process.wait(timeout=10) == 17


# Activation


def test_both_environments_are_activated_one_after_the_other(run, either, home):
    (home / "conda").write_text('export TRAIL="conda $1 of $#"; : $UNSET; false; true')
    (home / "venv").write_text('export TRAIL="$TRAIL, venv with $#"')
    env = {"WITH_CONDA": f"source {home}/conda env", "WITH_VENV": f"source {home}/venv"}
    trail = run(either, "-c", "import os; print(os.environ['TRAIL'])", env=env)
    assert trail == "conda env of 1, venv with 0\n"


def test_the_activated_python_is_the_one_that_runs(run, either, home):
    (home / "bin").mkdir()
    (home / "bin" / "python").write_text("#!/bin/sh\necho activated\n")
    (home / "bin" / "python").chmod(0o755)
    (home / "activate").write_text(f"PATH={home}/bin:$PATH")
    assert run(either, "-c", "", env={"WITH_VENV": f"source {home}/activate"}) == "activated\n"


@pytest.mark.parametrize("value", ["", " ", "true"])
def test_nothing_to_activate_is_fine(run, either, value):
    env = {"WITH_CONDA": value, "WITH_VENV": value}
    assert run(either, "-c", "print(1)", env=env) == "1\n"


@pytest.mark.parametrize("variable", ["WITH_CONDA", "WITH_VENV"])
def test_a_failed_activation_is_an_error(run_unchecked, either, variable):
    done = run_unchecked(either, "-c", "print(1)", env={variable: "source /does/not/exist"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == (
        f"{either}: 'source /does/not/exist' failed. Correct or unset WITH_CONDA or WITH_VENV"
    )


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


def test_python3_will_do_where_there_is_no_python(run, either, home):
    (home / "python3").symlink_to(sys.executable)
    assert run(either, "-c", "print(1)", env={"PATH": str(home)}) == "1\n"


def test_no_python_at_all_is_status_127_and_one_line(run_unchecked, either, home):
    done = run_unchecked(either, "-c", "print(1)", env={"PATH": str(home)})
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr.startswith(f"{either}: python3 not found on PATH. ")
    assert done.stderr.count("\n") == 1


# The way from the command to the package


def installed(runscripts, directory):
    """An install tree as a module has it: `runscripts/`, and links to its commands in `bin/`."""
    shutil.copytree(runscripts, directory / "runscripts", ignore=shutil.ignore_patterns("__pycache__"))
    (directory / "bin").mkdir()
    for command in COMMANDS:
        (directory / "bin" / command).symlink_to(f"../runscripts/{command}")
    return directory


@pytest.mark.parametrize(
    ("directory", "command"),
    [
        ("runscripts", "{0}"),
        ("runscripts", "./{0}"),
        ("runscripts", "bash {0}"),
        ("bin", "./{0}"),
        ("bin", "bash {0}"),
        (".", "runscripts/{0}"),
        (".", "bin/{0}"),
        (".", "bash bin/{0}"),
        (".", "PATH=$PWD/bin:$PATH {0}"),
        (".", "PATH=$PWD/bin:$PATH bash {0}"),
        (".", "PATH=bin:$PATH {0}"),
        ("/", "{1}/bin/{0}"),
    ],
)
def test_a_command_finds_its_files_however_it_is_called(run, runscripts, tmp_path, either, directory, command):
    tree = installed(runscripts, tmp_path / "install tree")
    path = f"{tree}/runscripts:{PATH}" if command == "{0}" else PATH
    call = command.replace("{1}", f"'{tree}'").format(either)
    done = run("/bin/bash", "-c", f"{call} -c 'print(7)'", cwd=tree / directory, env={"PATH": path})
    assert done == "7\n"


def test_get_master_finds_its_files_through_a_link(run, runscripts, tmp_path):
    tree = installed(runscripts, tmp_path / "tree")
    assert run(str(tree / "bin" / "get-master"), "n[1-2]") == "n1\n"


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


# The world


def test_a_task_of_a_step_becomes_a_rank(run, step):
    env = json.loads(run("conda-python-distributed", "-c", SHOW_ENVIRONMENT, env=step))
    assert {name: env[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK")} == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "1",
    }
    assert env["MASTER_ADDR"] == "nid001002"
    for name in CACHE_VARIABLES:
        assert Path(env[name]).is_dir()
        assert f"/pytorch-{os.geteuid()}/7-nid001003/" in env[name]


def test_a_dry_run_prints_exactly_what_python_would_see(run, step):
    printed = dry_run(run, step)
    without = json.loads(run("conda-python-simple", "-c", SHOW_ENVIRONMENT, env=step))
    with_launcher = json.loads(run("conda-python-distributed", "-c", SHOW_ENVIRONMENT, env=step))
    for env in (without, with_launcher):
        env.pop("_", None)  # bash's own: the program it started
    assert set(printed) == TORCH_VARIABLES | CACHE_VARIABLES
    assert with_launcher == {**without, **printed}


def test_a_dry_run_starts_nothing_and_creates_nothing(run, step, home):
    run("conda-python-distributed", "--dry-run", "-c", "print('started')", env=step)
    assert list((home.parent / "tmp").iterdir()) == []


def test_what_the_user_exported_is_not_set_again(run, step):
    mine = {"MASTER_PORT": "4000", "OMP_NUM_THREADS": "3", "TRITON_CACHE_DIR": "/mine"}
    assert set(dry_run(run, {**step, **mine})) == (TORCH_VARIABLES | CACHE_VARIABLES) - set(mine)


@pytest.fixture
def worker():
    """What torchrun exports to its first worker of four."""
    return {
        "TORCHELASTIC_RUN_ID": "none",
        "RANK": "0",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "node7",
        "MASTER_PORT": "40001",
    }


def test_a_worker_of_torchrun_keeps_torchruns_world(run, step, worker):
    assert set(dry_run(run, {**step, **worker})) == CACHE_VARIABLES | {"OMP_NUM_THREADS"}


def test_a_batch_script_without_srun_waits_for_nobody(run, batch_script):
    printed = dry_run(run, batch_script)
    assert (printed["WORLD_SIZE"], printed["MASTER_ADDR"]) == ("1", "127.0.0.1")
    assert "/7-nid001001/" in printed["TRITON_CACHE_DIR"]


def test_a_laptop_is_a_world_of_one(run):
    printed = dry_run(run, {})
    assert (printed["RANK"], printed["WORLD_SIZE"]) == ("0", "1")
    assert f"/local-{os.uname().nodename}/" in printed["TRITON_CACHE_DIR"]
    assert int(printed["OMP_NUM_THREADS"]) == len(os.sched_getaffinity(0))


def test_a_virtual_local_rank_is_0_on_every_rank(run, step):
    printed = run("conda-python-distributed", "--virtual-local-rank", "--dry-run", env=step)
    assert "LOCAL_RANK=0\n" in printed
    assert "LOCAL_WORLD_SIZE=2\n" in printed


def test_a_program_that_a_rank_0_started_may_launch_another_with_its_port(run):
    with socket.create_server(("", 0)) as own:
        port = str(own.getsockname()[1])
        assert run("conda-python-distributed", "-c", "print(1)", env={"MASTER_PORT": port}) == "1\n"


def test_a_launch_inside_a_virtual_local_rank_is_one_too(run, step, runscripts):
    code = f"import os; os.execv('{runscripts}/conda-python-distributed', ['x', '--dry-run'])"
    printed = run("conda-python-distributed", "--virtual-local-rank", "-c", code, env=step)
    assert "LOCAL_RANK" not in {line.split("=")[0] for line in printed.splitlines()}


def test_rank_0_does_not_start_where_a_stranger_listens(run_unchecked, step):
    step.update(SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODEID="0")
    with socket.create_server(("", 0)) as stranger:
        step["MASTER_PORT"] = str(stranger.getsockname()[1])
        done = run_unchecked("conda-python-distributed", "-c", "print('started')", env=step)
        others = run_unchecked("conda-python-distributed", "-c", "print('rank 1')", env={**step, "SLURM_PROCID": "1"})
    assert (done.returncode, done.stdout) == (2, "")
    assert f"port {step['MASTER_PORT']} on nid001002" in done.stderr
    assert done.stderr.count("\n") == 1
    assert others.stdout == "rank 1\n"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU leaves nothing to share")
def test_a_mask_that_slurm_did_not_make_is_shared_even_if_slurm_counts_more_cpus(run, step):
    """As on nodes where some cores are for the system alone (core specialization)."""
    step["SLURM_CPUS_ON_NODE"] = "4096"
    own = int(dry_run(run, step)["OMP_NUM_THREADS"])
    shared = int(dry_run(run, {**step, "SLURM_CPU_BIND_TYPE": "none"})["OMP_NUM_THREADS"])
    assert shared == max(1, own // 2)


# ddp-env


SOURCE = "source <({0}/ddp-env)"


def test_ddp_env_gives_a_shell_what_python_would_get(run, step, runscripts):
    code = f"{SOURCE.format(runscripts)} && exec python -c '{SHOW_ENVIRONMENT}'"
    sourced = json.loads(run("/bin/bash", "-c", code, env=step))
    launched = json.loads(run("conda-python-distributed", "-c", SHOW_ENVIRONMENT, env=step))
    for env in (sourced, launched):
        for name in ("_", "PWD", "SHLVL"):
            env.pop(name, None)
    assert sourced == launched


def test_a_failure_of_ddp_env_does_not_start_python(run_unchecked, step, runscripts):
    step["SLURM_STEP_NODELIST"] = "nid[001002-"
    done = run_unchecked("/bin/bash", "-c", f"{SOURCE.format(runscripts)} && echo started", env=step)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ddp-env: SLURM_STEP_NODELIST: ")


@pytest.mark.parametrize("command", ["source <({0}/ddp-env)", 'eval "$({0}/ddp-env)"'])
def test_a_failure_before_any_python_does_not_start_python_either(run_unchecked, step, runscripts, home, command):
    step["PATH"] = str(home)
    code = f"{command.format(runscripts)} && echo started"
    done = run_unchecked("/bin/bash", "-c", code, env=step)
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr.startswith("ddp-env: python3 not found on PATH")


# torchrun-distributed


@pytest.fixture
def agent(step, home):
    """A task that is alone on its node, and a python that shows how torchrun would be started."""
    (home / "python").write_text(
        f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))\n"
    )
    (home / "python").chmod(0o755)
    step.update(
        PATH=f"{home}:{PATH}",
        SLURM_STEP_NUM_TASKS="2",
        SLURM_STEP_TASKS_PER_NODE="1(x2)",
        SLURM_PROCID="1",
        SLURM_LOCALID="0",
    )
    return step


def test_torchrun_gets_the_nodes_the_rendezvous_and_our_worker(run, agent, runscripts):
    arguments, env = json.loads(run("torchrun-distributed", "--max-restarts=3", "train.py", "--lr", "1", env=agent))
    assert arguments == [
        "-m",
        "torch.distributed.run",
        "--nnodes=2",
        "--nproc-per-node=1",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=nid001002:{10000 + 7 * 61}",
        "--rdzv-id=7.0",
        "--rdzv-conf=is_host=false",
        "--local-addr=nid001003",
        "--max-restarts=3",
        "train.py",
        "--lr",
        "1",
    ]
    assert Path(env["PYTHON_EXEC"]).samefile(runscripts / "conda-python-distributed")
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"} & set(env)
    assert not CACHE_VARIABLES & set(env)  # each worker makes its own


def test_the_agent_on_the_first_node_hosts_the_rendezvous(run, agent):
    agent.update(SLURM_PROCID="0", SLURM_NODEID="0", SLURMD_NODENAME="nid001002")
    arguments, _ = json.loads(run("torchrun-distributed", "train.py", env=agent))
    assert "--rdzv-conf=is_host=true" in arguments


def test_agents_of_mpirun_share_a_run_id_where_the_first_node_alone_knows_the_job(run, home):
    (home / "python").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (home / "python").chmod(0o755)
    mpirun = {
        "PATH": f"{home}:{PATH}",
        "MASTER_ADDR": "nid001002",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        "PMIX_NAMESPACE": "1997275137",
    }
    run_ids = set()
    for rank, job in enumerate(({"SLURM_JOB_ID": "7"}, {})):
        arguments = run("torchrun-distributed", "train.py", env={**mpirun, **job, "OMPI_COMM_WORLD_RANK": str(rank)})
        run_ids.update(line for line in arguments.splitlines() if line.startswith("--rdzv-id="))
    assert len(run_ids) == 1
    assert run_ids.pop().startswith("--rdzv-id=mpi")


def test_the_agents_line_has_the_rendezvous_of_its_options(run_unchecked, agent):
    done = run_unchecked("torchrun-distributed", "train.py", env={**agent, "PYTORCH_LAUNCH_VERBOSE": "1"})
    endpoint = next(word for word in json.loads(done.stdout)[0] if word.startswith("--rdzv-endpoint="))
    assert f"master {endpoint.partition('=')[2]}, from Slurm step" in done.stderr


def test_the_users_rendezvous_and_threads_win_in_torchrun_too(run, agent):
    agent.update(MASTER_ADDR="fd00::2", MASTER_PORT="4000", OMP_NUM_THREADS="3")
    arguments, env = json.loads(run("torchrun-distributed", "train.py", env=agent))
    assert "--rdzv-endpoint=[fd00::2]:4000" in arguments
    assert env["OMP_NUM_THREADS"] == "3"
    assert not {"MASTER_ADDR", "MASTER_PORT", "PYTORCH_LAUNCH_AGENT_THREADS"} & set(env)


def test_several_agents_on_a_node_are_refused(run_unchecked, step):
    done = run_unchecked("torchrun-distributed", "train.py", env=step)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Slurm step 7.0 has 2 tasks on nid001003" in done.stderr
    assert "--ntasks-per-node=1" in done.stderr


def test_an_agent_inside_torchrun_is_refused(run_unchecked, worker):
    done = run_unchecked("torchrun-distributed", "train.py", env=worker)
    assert done.returncode == 2
    assert "worker of torchrun run none already" in done.stderr


# Messages


def test_one_line_reports_what_was_decided_if_asked(run_unchecked, step):
    done = run_unchecked("conda-python-distributed", "-c", "", env={**step, "PYTORCH_LAUNCH_VERBOSE": "1"})
    assert done.returncode == 0
    assert done.stderr.startswith("nid001003: rank 3 of 4, local rank 1 of 2, node rank 1, ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("value", ["0", ""])
def test_nothing_is_said_if_not_asked(run, step, value):
    env = {**step, "PYTORCH_LAUNCH_VERBOSE": value}
    assert run("conda-python-distributed", "-c", "", env=env) == ""


def test_a_missing_script_is_one_line_of_the_first_rank_of_each_node(run_unchecked, step, home):
    step.update(SLURM_PROCID="2", SLURM_LOCALID="0")
    first = run_unchecked("conda-python-distributed", "-u", "trian.py", env=step)
    assert (first.returncode, first.stdout) == (2, "")
    assert first.stderr == f"conda-python-distributed: trian.py: no such file in {home}. Check the path\n"


@pytest.mark.parametrize(
    ("containers", "bind"),
    [(("APPTAINER", "SINGULARITY"), "APPTAINER_BIND"), (("SINGULARITY",), "SINGULARITY_BIND")],
)
def test_a_script_that_a_container_does_not_see_is_told_the_bind_that_its_runtime_reads(
    run_unchecked, home, containers, bind
):
    env = {f"{runtime}_CONTAINER": "/image.sif" for runtime in containers}
    done = run_unchecked("conda-python-distributed", "/elsewhere/train.py", env=env)
    hint = f"Check the path; in this container, bind its directory with {bind}"
    assert done.stderr == f"conda-python-distributed: /elsewhere/train.py: no such file in {home}. {hint}\n"


def test_the_other_ranks_of_a_node_leave_the_first_the_time_to_say_so_and_end_with_it(run_unchecked, runscripts, step):
    # srun's SIGTERM, which comes when the first rank has ended, is here already
    code = """import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.kill(os.getpid(), signal.SIGTERM)
os.execv(sys.argv[1], sys.argv[1:])"""
    command = str(runscripts / "conda-python-distributed")
    done = run_unchecked(sys.executable, "-c", code, command, "trian.py", env=step)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_where_no_rank_ends_the_others_each_reports_it(runscripts, run_unchecked, step, home):
    code = "from pytorch_launch import launch; launch.REPORT_GRACE_SECONDS = 0.1; raise SystemExit(launch.main({}))"
    main = code.format(["conda-python-distributed", "trian.py"])
    done = run_unchecked(sys.executable, "-c", main, env={**step, "PYTHONPATH": str(runscripts)})
    assert done.returncode == 2
    assert done.stderr.startswith("conda-python-distributed: trian.py: no such file in ")


def test_a_node_list_that_cannot_be_read_is_one_line_and_no_localhost(run_unchecked, step):
    env = {**step, "SLURM_STEP_NODELIST": "nid[001002-"}
    done = run_unchecked("conda-python-distributed", "--dry-run", env=env)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("conda-python-distributed: SLURM_STEP_NODELIST: node list 'nid[001002-' has ")
    assert done.stderr.count("\n") == 1


def test_a_warning_about_caches_comes_from_the_first_rank_of_a_node_only(run_unchecked, step):
    step["TMPDIR"] = "/does/not/exist"
    others = run_unchecked("conda-python-distributed", "--dry-run", env=step)
    step.update(SLURM_PROCID="2", SLURM_LOCALID="0")
    first = run_unchecked("conda-python-distributed", "--dry-run", env=step)
    assert others.stderr == ""
    assert first.stderr.startswith("conda-python-distributed: cannot use /does/not/exist for caches: ")
    assert first.returncode == others.returncode == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_printed(run, command):
    usage, text = run(command, "--help").split("\n", 1)
    assert usage.startswith("usage: ")
    assert command in usage
    assert text


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("changes", "lines"),
    [({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}, True), ({}, False),
     ({"SLURM_PROCID": "none"}, True)],
    ids=["first", "other", "no-number"],
)  # fmt: skip
def test_only_the_first_rank_of_a_step_prints_the_help(run, step, command, changes, lines):
    assert bool(run(command, "--help", env={**step, **changes})) == lines


# get-master


@pytest.mark.parametrize(
    ("arguments", "env", "host"),
    [
        (["r[1-2]n[01-04]"], {"SLURM_STEP_NODELIST": "other"}, "r1n01"),
        ([], {"SLURM_STEP_NODELIST": "n[2-3]", "SLURM_JOB_NODELIST": "n[1-3]"}, "n2"),
        ([], {"SLURM_JOB_NODELIST": "n[1-3]"}, "n1"),
    ],
)
def test_get_master_prints_the_first_host(run, arguments, env, host):
    assert run("get-master", *arguments, env=env) == f"{host}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["n[3-1]"], "reversed range"), ([], "Run inside a job"), (["n1", "n2"], "quotes"), (["-h"], "--help")],
)
def test_get_master_fails_with_one_line(run_unchecked, arguments, message):
    done = run_unchecked("get-master", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("get-master: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


# An allocation that is not used


@pytest.mark.parametrize(
    ("allocation", "count"),
    [
        ({"SLURM_NTASKS": "4", "SLURM_JOB_NUM_NODES": "2"}, "4 tasks"),
        ({"SLURM_JOB_NUM_NODES": "2"}, "2 nodes"),
        ({"SLURM_NTASKS": "4", "SLURM_JOB_NUM_NODES": "1"}, "4 tasks"),
    ],
)
def test_a_process_alone_in_an_allocation_of_several_tasks_is_warned_of(run_unchecked, batch_script, allocation, count):
    del batch_script["SLURM_NTASKS"]
    done = run_unchecked("conda-python-distributed", "-c", "", env={**batch_script, **allocation})
    message = f"only one process in an allocation of {count}. To use all of it, start it with srun"
    assert (done.returncode, done.stderr) == (0, f"conda-python-distributed: {message}\n")


@pytest.mark.parametrize("command", ["conda-python-simple", "conda-python-distributed"])
def test_a_process_that_uses_its_allocation_is_not_warned_of(run, batch_script, command):
    if command != "conda-python-simple":
        batch_script.update(SLURM_NTASKS="1", SLURM_JOB_NUM_NODES="1")
    assert run(command, "-c", "", env=batch_script) == ""


def test_an_agent_of_torchrun_starts_the_ranks_of_its_node_by_itself(run, run_unchecked, agent, batch_script):
    env = {**{name: value for name, value in agent.items() if not name.startswith("SLURM")}, **batch_script}
    run("torchrun-distributed", "train.py", env={**env, "SLURM_JOB_NUM_NODES": "1"})
    done = run_unchecked("torchrun-distributed", "train.py", env={**env, "SLURM_JOB_NUM_NODES": "2"})
    assert "only one process in an allocation of 2 nodes" in done.stderr


def test_a_file_at_its_limit_is_an_error_and_not_half_of_the_variables(run_unchecked, runscripts, step, home):
    env = {**step, "PYTORCH_DISTRIBUTED_LONG": "x" * 2000}
    done = run_unchecked("bash", "-c", f"ulimit -f 1; {runscripts}/ddp-env >variables", env=env)
    assert done.returncode == 2
    assert "ddp-env: cannot write to standard output: File too large" in done.stderr
    assert (home / "variables").stat().st_size == 1024
