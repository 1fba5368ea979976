"""pytorch-run: its command line, the steps that follow from it, and runs with a written srun, squeue and sinfo."""

import os
import signal
import subprocess
import time

import pytest
from programs import program
from pytorch_launch import LaunchError
from pytorch_run import run
from pytorch_run.run import parse
from variables import variables

JOB = {"SLURM_JOB_ID": "7"}


@pytest.fixture
def plan(monkeypatch):
    """A function that returns the Run of a command line in a job on three nodes."""
    monkeypatch.setattr(run, "node_states", lambda *_: {})
    monkeypatch.setattr(run, "job_state", lambda *_: ("RUNNING", ["n1", "n2", "n3"]))

    def make(line, tasks=3, **env):
        sizes = {"SLURM_NTASKS": str(tasks), "SLURM_JOB_NUM_NODES": "3"} if tasks else {}
        return run.Run(parse([*line.split(), "--", "conda-python-distributed"]), {**JOB, **sizes, **env})

    return make


def chosen(plan):
    return plan.nodes[: plan.wanted]


def test_own_options_and_those_of_srun_may_be_mixed():
    line = "-l --spare 1 -N2 --gpus-per-node=4 --retries=5 -- singularity exec x -N9 --spare 7"
    options = parse(line.split())
    assert (options.spare, options.nodes, options.retries) == (1, 2, 5)
    assert options.srun == ["-l", "--gpus-per-node=4"]
    assert options.command == ["singularity", "exec", "x", "-N9", "--spare", "7"]
    assert parse(["--", "x"]).retries == 3
    of_srun = ["-t", "5", "--cpus-per-task", "4", "-l"]
    assert parse([*of_srun[:2], "--spare", "1", *of_srun[2:], "--", "x"]).srun == of_srun


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("-N2 train.py", "no command after `--`"),
        ("-N2 --", "no command after"),
        ("-N2-4 -- x", "invalid int value: .2-4."),
        ("-w n1 -- x", "-w names nodes"),
        ("--retries -- x", "--retries: expected one argument"),
        ("--retries=-1 -- x", "--retries=-1 is not a number from 0"),
        ("--min-nodes 0 -- x", "--min-nodes=0 is not a number from 1"),
    ],
)
def test_a_line_that_cannot_be_run_is_an_error(line, fault):
    with pytest.raises(LaunchError, match=fault):
        parse(line.split())


@pytest.mark.parametrize(
    ("line", "nodes"),
    [("--spare 1", "n1 n2"), ("-N1", "n1"), ("-n2", "n1 n2"), ("-n2 -N3", "n1 n2"), ("-x n2", "n1 n3")],
)
def test_the_spare_nodes_are_the_last_ones_and_fewer_tasks_need_as_many_nodes(plan, line, nodes):
    assert chosen(plan(line)) == nodes.split()


def test_an_allocation_without_room_for_spare_nodes_is_an_error(plan):
    with pytest.raises(LaunchError, match="-N3 and --spare 1 need 4 nodes, and the allocation has 3"):
        plan("-N3 --spare 1")
    with pytest.raises(LaunchError, match="--spare 3 need 4 nodes"):
        plan("--spare 3")


@pytest.mark.parametrize(
    ("line", "tasks", "options"),
    [
        ("--ntasks-per-node=2", 12, []),
        ("-n8 -N2", 3, ["--ntasks=8"]),
        ("-n2", 3, ["--ntasks=2"]),
        ("", 12, ["--ntasks=8"]),
        ("", None, []),  # srun starts one on each node, whatever SLURM_TASKS_PER_NODE is
    ],
)
def test_a_step_has_the_tasks_of_the_line_else_of_the_allocation(plan, line, tasks, options):
    assert plan(f"{line} --spare 1", tasks, SLURM_TASKS_PER_NODE="4(x3)").tasks(2) == options


def test_tasks_that_differ_between_nodes_are_not_divided(plan):
    assert plan("", 5).tasks(3) == ["--ntasks=5"]
    with pytest.raises(LaunchError, match="the job has 5 tasks on 3 nodes, and a step has 2 nodes. Name the tasks"):
        plan("--spare 1", 5)


def test_a_world_that_may_shrink_continues_on_fewer_nodes(plan):
    found = plan("--min-nodes 1 -n6")
    found.leave_out({"n1": "no answer", "n2": "no answer"})
    assert found.shortage() is None and chosen(found) == ["n3"]
    assert found.tasks(1) == ["--ntasks=2"]


SRUN = """
echo "$* tasks=${SLURM_NTASKS-none} bind=${SLURM_CPU_BIND-none}" >>calls
case "$*" in
*pytorch-doctor*)
    for node in $(cat alive); do echo "{\\"node\\": \\"$node\\", \\"verdict\\": \\"ok\\", \\"checks\\": []}"; done
    [ ! -e refused ] || cat refused >&2 ;;
*) source "./step-$(grep -c -v -e pytorch-doctor -e '^$' calls)" ;;
esac
"""
ENV = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "3", "SLURM_JOB_NUM_NODES": "3"}
LAUNCHER = "conda-python-distributed train.py"


class Cluster:
    """A directory with the commands of Slurm, what they answer, and the steps, each a script."""

    def __init__(self, directory, command):
        self.directory, self.command = directory, command
        for name, text in {"srun": SRUN, "squeue": "cat jobs", "sinfo": "cat nodes"}.items():
            program(directory / name, text, "/bin/bash")
        self.write(alive="n1 n2 n3", jobs="7|RUNNING|n[1-3]", nodes="n1|mixed|none")

    def write(self, **texts):
        for name, text in texts.items():
            (self.directory / name.replace("_", "-")).write_text(text + "\n")

    def start(self, line, env=ENV, **pipes):
        env = {"PATH": f"{self.directory}:{os.environ['PATH']}", **env}
        pipes = pipes or {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([self.command, *line.split()], cwd=self.directory, env=env, text=True, **pipes)

    def run(self, line, env=ENV, preflight="--no-preflight"):
        """Return the exit status, and what it printed."""
        process = self.start(f"{preflight} {line}", env)
        _, errors = process.communicate(timeout=300)
        return process.returncode, errors

    @property
    def steps(self):
        """The arguments of the steps of the user's command."""
        lines = (self.directory / "calls").read_text().split("\n")
        return [line for line in lines if line and "pytorch-doctor" not in line]


@pytest.fixture
def cluster(tmp_path, runscripts):
    return Cluster(tmp_path, runscripts / "pytorch-run")


def test_a_step_runs_again_without_the_node_that_does_not_answer(cluster):
    cluster.write(step_1="echo n1 n3 >alive; exit 1", step_2="exit 0")
    status, said = cluster.run(f"--spare 1 -l -- {LAUNCHER}")
    assert status == 0, said
    first, second = cluster.steps
    assert first.startswith("-l --nodes=2 --nodelist=n1,n2 ")
    assert second.startswith("--overlap --immediate=300 -l --nodes=2 ")  # a limit: it may wait for ever
    assert "--nodelist=n1,n3" in second and f" {LAUNCHER} " in second
    assert "n2 failed: no answer" in said and "run 2 on n1,n3, 0 spare" in said


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ("echo '7|RUNNING|n[1,3]' >jobs", "Slurm removed it from the job"),
        ("echo 'n2|down*|Not responding' >nodes", "Slurm reports down* (Not responding)"),
    ],
)
@pytest.mark.parametrize("command", ["train", LAUNCHER])
def test_status_0_of_a_step_whose_node_failed_is_no_success(cluster, command, after, reason):
    """srun of Slurm 22.05 returns it if no rank on another node failed."""
    cluster.write(step_1=f"{after}; exit 0", step_2="exit 0")
    status, said = cluster.run(f"--spare 1 -- {command}")
    assert (status, len(cluster.steps)) == (0, 2)
    assert f"n2 failed: {reason}" in said


def test_the_steps_have_the_tasks_of_the_line_and_leave_no_files(cluster):
    cluster.write(step_1="exit 0")
    before = set(cluster.directory.iterdir())
    assert cluster.run(f"-- {LAUNCHER}")[0] == 0
    assert cluster.steps[0].endswith("tasks=none bind=none")
    assert {path.name for path in set(cluster.directory.iterdir()) - before} == {"calls"}


ENDED = "job 7 has ended, or Slurm does not answer: SLURM_JOB_ID=7. "
LEFT = "exited with status 137. No spare node is left: 2 of the 3 nodes that it needs, as n3 failed"
TWO_FAIL = {"step_1": "echo n2 n3 >alive; exit 1", "step_2": "echo n3 >alive; exit 1"}
#: What a step does, the options, and then: exit status, number of steps, message.
ENDS = [
    ({"step_1": "exit 3"}, "--spare 1", 3, 1, "run 1 exited with status 3, and no node failed: not repeated"),
    ({"step_1": "echo '7|RUNNING|n[1,3]' >jobs; exit 0"}, "", 1, 1, "exited with status 1. No spare node is left"),
    ({"step_1": "echo 'n3|down*|Not responding' >nodes; exit 137"}, "", 137, 1, LEFT),
    (TWO_FAIL, "-N1 --retries 1", 1, 2, "run 2 exited with status 1, the last of --retries 1"),
    ({"step_1": "echo '7|COMPLETING|n1' >jobs; exit 143"}, "--spare 1", 143, 1, "the job is COMPLETING"),
    ({"jobs": "9|RUNNING|n[1-3]"}, "", 2, 0, ENDED),
    ({"jobs": ""}, "", 2, 0, ENDED),
]


@pytest.mark.parametrize(("files", "options", "status", "steps", "message"), ENDS)
def test_it_ends_with_the_status_of_the_last_step_and_a_reason(cluster, files, options, status, steps, message):
    cluster.write(calls="", **files)
    found, said = cluster.run(f"{options} -- {LAUNCHER}")
    assert (found, len(cluster.steps)) == (status, steps) and message in said


def test_a_terminal_that_is_gone_does_not_change_the_status(cluster):
    cluster.write(step_1="echo Loss >&2; exit 0")
    source, target = os.pipe()
    os.close(source)
    assert cluster.start(f"--no-preflight -l -- {LAUNCHER}", stderr=target).wait(300) == 0
    os.close(target)


def test_a_signal_goes_to_srun_and_ends_the_repetition(cluster):
    cluster.write(step_1="trap 'kill %1; echo n1 >alive; exit 143' TERM; sleep 600 & touch started; wait")
    process = cluster.start("--no-preflight --spare 1 -- train")
    deadline = time.monotonic() + 300
    while not (cluster.directory / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=300)
    assert (process.returncode, len(cluster.steps)) == (143, 1), said


def test_the_preflight_leaves_out_a_node_before_the_first_step(cluster):
    cluster.write(alive="n2 n3", step_1="exit 0")
    status, said = cluster.run("--spare 1 -- train", preflight="")
    assert status == 0, said
    assert "n1 failed: no answer" in said and "2 nodes checked in " in said
    assert "--nodelist=n2,n3" in cluster.steps[0]


def test_a_preflight_without_any_answer_has_another_cause_than_the_nodes(cluster):
    cluster.write(alive="", refused="srun: error: Unable to create step for job 7: CPU count per node")
    status, said = cluster.run("--spare 1 -- train", preflight="")
    assert status == 2 and not cluster.steps
    assert "no node answers pytorch-doctor: n1: srun: Unable to create step for job 7: CPU count" in said
    assert "failed" not in said


HETEROGENEOUS = variables(
    "SLURM_JOB_ID=7 SLURM_HET_SIZE=2 SLURM_NTASKS=4 SLURM_JOB_ID_HET_GROUP_0=7 SLURM_NTASKS_HET_GROUP_0=1 "
    "SLURM_JOB_NUM_NODES_HET_GROUP_0=1 SLURM_JOB_ID_HET_GROUP_1=8 SLURM_NTASKS_HET_GROUP_1=6 "
    "SLURM_JOB_NUM_NODES_HET_GROUP_1=3"
)


def test_a_component_of_a_heterogeneous_job_has_its_own_nodes(cluster):
    cluster.write(jobs="7|RUNNING|n4\n8|RUNNING|n[1-3]", step_1="exit 0")
    assert cluster.run("--het-group=1 --spare 1 -- train", HETEROGENEOUS)[0] == 0
    assert "--het-group=1 --nodes=2 --nodelist=n1,n2 --ntasks=4 train" in cluster.steps[0]
    status, said = cluster.run("--het-group=0,1 -- train", HETEROGENEOUS)
    assert status == 2 and "--het-group=0,1 is not a component of job 7" in said


def test_variables_of_a_step_around_it_do_not_reach_srun(cluster):
    cluster.write(step_1="exit 0")
    step = {**ENV, "SLURM_STEP_ID": "0", "SLURM_CPU_BIND": "mask_cpu:0x1"}
    assert cluster.run("-n3 -- train", step)[0] == 0
    assert cluster.steps[0].startswith("--overlap ") and cluster.steps[0].endswith("bind=none")
    status, said = cluster.run("-- train", step)
    assert status == 2 and "SLURM_NTASKS=3 is of step 0, and not of the job. Name the tasks" in said
    for script in ("-5", "4294967291"):  # up to Slurm 25.11 that of salloc's shell alone has a number
        assert "is of step" not in cluster.run("-- train", {**step, "SLURM_STEP_ID": script})[1]


def test_a_node_whose_tasks_were_killed_is_replaced_and_the_messages_are_passed_on(cluster):
    killed = "srun: error: n2: tasks 2-3: Killed\nsrun: error: n1: tasks 0-1: Terminated"
    cluster.write(step_1=f"echo '{killed}' >&2; printf 'no newline' >&2; exit 137", step_2="exit 0")
    status, said = cluster.run("--spare 1 -- train")
    assert (status, len(cluster.steps)) == (0, 2)
    assert killed in said and "no newlinepytorch-run: n2 failed: srun: its tasks were killed" in said
