"""What commands print: errors, warnings, help, the first host."""

import sys

import pytest

# Messages


def test_control_characters_of_variables_are_printed_escaped(run_unchecked, step):
    for name, value in (
        ("SLURM_STEP_NODELIST", "n\x1b[2J"),
        ("SLURMD_NODENAME", "n\r\n"),
        ("SLURM_PROCID", "\x9b1"),
        ("RANK", b"\x9b1"),
    ):
        done = run_unchecked("conda-python-distributed", "-c", "", env={**step, name: value}, errors="surrogateescape")
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1 and not {"\x1b", "\r", "\x9b", "\udc9b"} & set(done.stderr)
        assert "\\x" in done.stderr


@pytest.mark.parametrize("switch", ["ACTIVE", "KEEP_PATHS", "TRACEABLE"])
@pytest.mark.parametrize("command", ["conda-python-distributed", "conda-python-simple"])
def test_a_switch_is_0_or_1(run_unchecked, command, switch):
    for value in ("false", "no", "2"):
        done = run_unchecked(
            command, "-c", "print('ran')", env={f"PYTORCH_LAUNCH_{switch}": value, "CONTAINERROOT": sys.prefix}
        )
        fault = f"PYTORCH_LAUNCH_{switch}={value} is neither 0 nor 1. Correct or unset it\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{command}: {fault}")


@pytest.mark.parametrize("runtimes", [("APPTAINER", "SINGULARITY"), ("SINGULARITY",)])
def test_a_script_that_a_container_does_not_see_is_told_the_bind_that_its_runtime_reads(
    run_unchecked, runscripts, home, runtimes
):
    env, bind = {f"{runtime}_CONTAINER": "/image.sif" for runtime in runtimes}, f"{runtimes[0]}_BIND"
    (home / "link").symlink_to("/elsewhere")
    for script in ("/elsewhere/train.py", "link/train.py"):
        done = run_unchecked("conda-python-distributed", script, env=env)
        fault = f"{script}: its directory, /elsewhere, is not visible in this image"
        hint = f"Bind it: `export {bind}=${bind},/elsewhere`"
        assert done.stderr == f"conda-python-distributed: {fault}. {hint}\n"
    done = run_unchecked("conda-python-distributed", "train.py", env=env)
    assert done.stderr == f"conda-python-distributed: train.py: no such file in {home}. Check the path\n"
    gone = 'mkdir gone && cd gone && rmdir ../gone && exec "$0" train.py'
    done = run_unchecked("bash", "-c", gone, runscripts / "conda-python-distributed", env=env)
    assert "train.py: the working directory has been deleted. Change to another one\n" in done.stderr
    assert "Traceback" not in done.stderr


ENDED = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); os.kill(os.getpid(), signal.SIGTERM); "
REPORT = "conda-python-distributed: trian.py: no such file in "


@pytest.mark.parametrize(("srun", "report"), [("", REPORT), (ENDED, "")], ids=["waits", "ends it"])
def test_another_rank_of_a_node_reports_if_the_report_of_the_first_does_not_end_it(
    run_unchecked, runscripts, step, srun, report
):
    code = "import os, signal; from pytorch_launch import launch; launch.REPORT_GRACE_SECONDS = 0.1; "
    code += f"{srun}raise SystemExit(launch.main(['conda-python-distributed', 'trian.py']))"
    done = run_unchecked(sys.executable, "-c", code, env={**step, "PYTHONPATH": str(runscripts)})
    assert (done.returncode, done.stderr[: len(REPORT)]) == (2, report)


def test_a_warning_about_caches_comes_from_the_first_rank_of_a_node_only(run_unchecked, step):
    step["TMPDIR"] = "/does/not/exist"
    others = run_unchecked("conda-python-distributed", "--dry-run", env=step)
    step.update(SLURM_PROCID="2", SLURM_LOCALID="0")
    first = run_unchecked("conda-python-distributed", "--dry-run", env=step)
    assert others.stderr == ""
    assert first.stderr.startswith("conda-python-distributed: cannot use /does/not/exist for caches: ")
    assert first.returncode == others.returncode == 0


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


def test_get_master_fails_with_one_line(run_unchecked):
    for words, fault in (("n[3-1]", "reversed range"), ("", "Run inside a job"), ("n1 n2", "quotes"), ("-h", "--help")):
        done = run_unchecked("get-master", *words.split())
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith("get-master: ") and fault in done.stderr


# An allocation that is not used


@pytest.mark.parametrize(
    ("allocation", "count"),
    [
        ({"SLURM_NTASKS": "4", "SLURM_JOB_NUM_NODES": "2"}, "4 tasks"),
        ({"SLURM_JOB_NUM_NODES": "2"}, "2 nodes"),
        ({"SLURM_NTASKS": "4", "SLURM_JOB_NUM_NODES": "1"}, "4 tasks"),
        ({"SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1"}, None),  # it uses all of it
    ],
)
def test_a_process_alone_in_an_allocation_of_several_tasks_is_warned_of(run_unchecked, batch_script, allocation, count):
    del batch_script["SLURM_NTASKS"]
    done = run_unchecked("conda-python-distributed", "-c", "", env={**batch_script, **allocation})
    message = f"only one process in an allocation of {count}. To use all of it, start it with srun"
    assert (done.returncode, done.stderr) == (0, f"conda-python-distributed: {message}\n" if count else "")


def test_an_agent_of_torchrun_starts_the_ranks_of_its_node_by_itself(run, run_unchecked, agent, batch_script):
    env = {**{name: value for name, value in agent.items() if not name.startswith("SLURM")}, **batch_script}
    run("torchrun-distributed", "train.py", env={**env, "SLURM_JOB_NUM_NODES": "1"})
    done = run_unchecked("torchrun-distributed", "train.py", env={**env, "SLURM_JOB_NUM_NODES": "2"})
    assert "only one process in an allocation of 2 nodes" in done.stderr
