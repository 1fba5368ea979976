"""pytorch-run: its command line, the steps that follow from it, and runs with a written srun, squeue and sinfo."""

import os
import signal
import subprocess
import time

import pytest
from programs import program
from pytorch_run import failed_nodes, parse
from tables import name as row_name
from tables import table


def test_own_options_and_those_of_srun_may_be_mixed():
    line = "-l --spare 1 -N2 --gpus-per-node=4 --retries=5 -- singularity exec x -N9 --spare 7"
    options = parse(line.split())
    assert (options.spare, options.nodes, options.retries) == (1, 2, 5)
    assert options.srun == ["-l", "--gpus-per-node=4"]
    assert options.command == ["singularity", "exec", "x", "-N9", "--spare", "7"]
    of_srun = ["-t", "5", "--cpus-per-task", "4", "-l"]
    assert parse([*of_srun[:2], "--spare", "1", *of_srun[2:], "--", "x"]).srun == of_srun


def test_a_line_with_srun_behind_the_dashes_has_its_options_there():
    line = "--silent 30m --spare 1 -- srun -N2 -c 4 -l --gres gpu:4 --exact --nice --mem=0 python -N9 train.py"
    options = parse(line.split())
    assert (options.silent, options.spare, options.nodes) == (1800, 1, 2)
    assert options.srun == ["-c", "4", "-l", "--gres", "gpu:4", "--exact", "--nice", "--mem=0"]
    assert options.command == ["python", "-N9", "train.py"]


WRONG = """
line                                | fault
--silent 30 -o x -- y               | --silent sees no output that srun writes to files. Omit -o;
--silent 30 -- srun --error=x y     | Omit --error=x;
--silent 30 -- srun -lo x y         | Omit -lo;
--silent 0 -- x                     | 0 is not a time, such as 90s, 30m or 2h
--silent 1d -- x                    | 1d is not a time
-N2 train.py                        | no command after `--`
-N2 --                              | no command after
-N2-4 -- x                          | 2-4 is not a number from 1
-w n1 -- x                          | -w names nodes
--retries -- x                      | --retries: expected one argument
--retries=-1 -- x                   | --spare and --retries are numbers from 0
-N0 -- x                            | 0 is not a number from 1
"""


@pytest.mark.parametrize("row", table(WRONG), ids=row_name)
def test_a_line_that_cannot_be_run_is_an_error(capsys, row):
    with pytest.raises(SystemExit):
        parse(row["line"].split())
    assert row["fault"] in capsys.readouterr().err


SRUN = """
echo "$* tasks=${SLURM_NTASKS-none} bind=${SLURM_CPU_BIND-none}" >>calls
case "$*" in
*--time=3*pytorch-doctor*)
    for node in $(cat dead); do
        [[ $* != *--nodelist=*$node* ]] || exec echo "srun: error: Task launch failed on node $node: No route"
    done
    for node in $(cat alive); do printf '{"node": "%s", "checks": [%s]}\n' $node "$(cat fails-$node 2>/dev/null)"; done
    [ ! -e refused ] || cat refused >&2 ;;
*) source "./step-$(grep -c -v -e pytorch-doctor -e '^$' calls)" ;;
esac
"""
#: Without rows for pytorch-stacks.
SQUEUE = "[[ $* = *%i* ]] || cat jobs"
ENV = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "3", "SLURM_JOB_NUM_NODES": "3"}
LAUNCHER = "conda-python-distributed train.py"


class Cluster:
    """A directory with the commands of Slurm, what they answer, and the steps, each a script."""

    def __init__(self, directory, command):
        self.directory = directory
        self.command = command
        for name, text in {"srun": SRUN, "squeue": SQUEUE, "sinfo": "cat nodes"}.items():
            program(directory / name, text, "/bin/bash")
        self.write(alive="n1 n2 n3", dead="", jobs="7|RUNNING|n[1-3]", nodes="n1|mixed|none", calls="")
        self.write(step_1="exit 0", step_2="exit 0")

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


GPU = '{"check": "gpu", "verdict": "FAIL", "finding": "none"}'
FULL = f'{GPU}, {{"check": "disk", "verdict": "FAIL", "finding": "No space left on device"}}'
NO_GPUS = {"alive": "n1 n2 n3", "fails_n1": GPU, "fails_n3": GPU}
DOWN = "echo 'n2|down*|Not responding' >nodes"
KILLED = "echo 'srun: error: Node failure on n2' >&2; printf 'no newline' >&2; exit 137"
#: States of the cluster, as files by name. Nodes are checked before the first step if the files name those that are
#: alive.
CLUSTERS = {
    "healthy": {},
    "n2 does not answer": {"step_1": "echo n1 n3 >alive; exit 1"},
    "n2 is removed": {"step_1": "echo '7|RUNNING|n[1,3]' >jobs; exit 0"},
    "n2 is down": {"step_1": f"{DOWN}; exit 137"},
    "n2 alone is down": {"jobs": "7|RUNNING|n2", "step_1": f"{DOWN}; exit 137"},
    "n1 was drained": {"nodes": "n1|draining|update", "step_1": "echo 'n2|draining|GPU 3' >>nodes; exit 1"},
    "srun reports n2": {"step_1": KILLED},
    "no answer of Slurm": {"step_1": "echo >nodes; echo >jobs; exit 3"},
    "the program fails": {"step_1": "exit 3"},
    "n1, then n2 fail": {"step_1": "echo n2 n3 >alive; exit 1", "step_2": "echo n3 >alive; exit 1"},
    "the job ends": {"step_1": "echo '7|COMPLETING|n1' >jobs; exit 143"},
    "another job": {"jobs": "9|RUNNING|n[1-3]"},
    "no job": {"jobs": ""},
    # before the first step
    "n1 is silent": {"alive": "n2 n3"},
    "all are silent": {"alive": "", "refused": "srun: error: Unable to create step for job 7"},
    "n1, n2 are dead": {"alive": "n3", "dead": "n1 n2"},
    "all are dead": {"alive": "", "dead": "n1 n2 n3"},
    "n1 warns": {"alive": "n1 n2 n3", "fails_n1": GPU.replace("FAIL", "WARN")},
    "no GPUs, n2 full": {**NO_GPUS, "fails_n2": FULL},
}
for state in ("down", "down*", "allocated*", "failing", "powering_down", "unknown"):
    CLUSTERS[f"n2 {state}"] = {"step_1": f"echo 'n2|{state}|x' >nodes; exit 0"}
IN_STEP = {**ENV, "SLURM_STEP_ID": "0", "SLURM_CPU_BIND": "mask_cpu:0x1"}
JOBS = {
    "": ENV,
    "5 tasks": {**ENV, "SLURM_NTASKS": "5"},
    "12 tasks": {**ENV, "SLURM_NTASKS": "12"},
    "tasks unknown": {"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "4(x3)"},
    "heterogeneous": {**ENV, "SLURM_HET_SIZE": "2"},
    "step": IN_STEP,
    "salloc's shell": {**IN_STEP, "SLURM_STEP_ID": "-5"},
    "batch script": {**IN_STEP, "SLURM_STEP_ID": "4294967291"},
}
#: What the user types before `--`, the cluster, and the job; then the exit status, parts of the arguments of each step,
#: and parts of the messages.
RUNS = """
line                | cluster            | job     | status | steps                                               | message
# spare nodes are the last ones, fewer tasks need as many nodes, and the tasks are those of the line or allocation
                    | healthy            |         | 0 | --nodelist=n1,n2,n3 --ntasks=3 conda...tasks=none bind=none |
--spare 1           | healthy            |         | 0 | --nodes=2 --nodelist=n1,n2 --ntasks=2 conda                 |
-N1                 | healthy            |         | 0 | --nodelist=n1 --ntasks=1                                    |
-n2                 | healthy            |         | 0 | --nodelist=n1,n2 --ntasks=2                                 |
-n2 -N3             | healthy            |         | 0 | --nodelist=n1,n2 --ntasks=2                                 |
-x n2               | healthy            |         | 0 | --nodelist=n1,n3 --ntasks=2                                 |
--spare 1 --ntasks-per-node=2 | healthy  | 12 tasks | 0 | --ntasks-per-node=2 --nodes=2 --nodelist=n1,n2 conda       |
-n8 -N2             | healthy            |         | 0 | --ntasks=8                                                  |
--spare 1           | healthy            | 12 tasks | 0 | --ntasks=8                                                 |
                    | healthy            | 5 tasks | 0 | --ntasks=5                                                  |
--spare 1           | healthy            | 5 tasks | 2 | | the job's 5 tasks are of 3 nodes, and a run has 2 nodes. Name its tasks
-N3 --spare 1       | healthy            |         | 2 | | -N3 and --spare 1 need 4 nodes, and the allocation has 3
--spare 3           | healthy            |         | 2 | | --spare 3 need 4 nodes
--spare 1           | healthy            | tasks unknown | 0 | --nodelist=n1,n2 conda                                |
                    | healthy            | heterogeneous | 2 | | job 7 is heterogeneous
# inside a step; up to Slurm 25.11 that of salloc's shell alone has a number
-n3                 | healthy            | step    | 0 | --overlap ...bind=none                                      |
                    | healthy            | step    | 2 | | the job's 3 tasks are of another step, and a run has 3 nodes. Name its tasks
                    | healthy            | salloc's shell | 0 | --ntasks=3                                           |
                    | healthy            | batch script | 0 | --ntasks=3                                             |
# again without the node that does not answer; srun may wait for ever, so it has a limit
--spare 1 -l        | n2 does not answer |         | 0 | -l --nodes=2 --nodelist=n1,n2 & --overlap --immediate=300 -l --nodes=2 --nodelist=n1,n3 | n2 failed: no answer...run 2 on n1,n3, 0 spare
# srun of Slurm 22.05 returns 0 if no rank on another node failed
--spare 1           | n2 is removed      |         | 0 | n1,n2 & n1,n3 | n2 failed: Slurm removed it from the job
--spare 1           | n2 down            |         | 0 | n1,n2 & n1,n3 | n2 failed: Slurm reports down (x)
--spare 1           | n2 down*           |         | 0 | n1,n2 & n1,n3 | n2 failed: Slurm reports down* (x)
--spare 1           | n2 allocated*      |         | 0 | n1,n2 & n1,n3 | n2 failed: Slurm reports allocated* (x)
--spare 1           | n2 failing         |         | 0 | n1,n2 & n1,n3 | n2 failed: Slurm reports failing (x)
--spare 1           | n2 powering_down   |         | 0 | n1,n2 & n1,n3 | n2 failed: Slurm reports powering_down (x)
--spare 1           | n2 unknown         |         | 0 | n1,n2 & n1,n3 | n2 failed: Slurm reports unknown (x)
# a node that was drained before has not failed; none has if Slurm does not answer
--spare 1           | n1 was drained     |         | 0 | n1,n2 & n1,n3 | n2 failed: Slurm reports draining (GPU 3)
--spare 1           | no answer of Slurm |         | 3 | n1,n2         | run 1 exited with status 3
# messages of srun and of the program are passed on
--spare 1           | srun reports n2    |         | 0 | n1,n2 & n1,n3 | srun: error: Node failure on n2...no newlinepytorch-run: n2 failed: srun: Node failure
# the status of the last step, and a reason
--spare 1           | the program fails  |         | 3 | n1,n2         | run 1 exited with status 3, and no node failed: not repeated
                    | n2 is removed      |         | 1 | n1            | exited with status 1. No spare node is left
                    | n2 is down         |         | 137 | n1          | exited with status 137. No spare node is left: 2 of the 3 nodes that it needs, as n2 failed
                    | n2 alone is down   |         | 137 | n2          | left: 0 of the 1 nodes
-N1 --retries 1     | n1, then n2 fail   |         | 1 | n1 & n2       | run 2 exited with status 1, the last of --retries 1
--spare 1           | the job ends       |         | 143 | n1          | the job is COMPLETING
                    | another job        |         | 2 | | job 7 has ended, or Slurm does not answer.
                    | no job             |         | 2 | | job 7 has ended, or Slurm does not answer.
# before the first step; if no node answers, it is not their fault
--spare 1           | n1 is silent       |         | 0 | --nodelist=n2,n3 | n1 failed: no answer...2 nodes passed the check
                    | all are silent     |         | 2 | | no node answers pytorch-doctor: n1: srun: Unable to create step
# a task that cannot start ends the step on all nodes, and srun names the first alone: the others are asked alone
-N1 --spare 2       | n1, n2 are dead    |         | 0 | --nodelist=n3 | n1 failed: srun: Task launch failed...n2 failed: srun: Task launch failed
                    | all are dead       |         | 2 | | no node answers pytorch-doctor: n1: srun: Task launch
# a check that fails on one node is its fault, and one that fails on all, or warns, is not
--spare 1           | n1 warns           |         | 0 | --nodelist=n1,n2 |
--spare 1           | no GPUs, n2 full   |         | 0 | --nodelist=n1,n3 | all nodes: pytorch-doctor: gpu: none...n2 failed: pytorch-doctor: disk: No space left on device
"""  # noqa: E501


@pytest.mark.parametrize("row", table(RUNS), ids=row_name)
def test_steps_run_until_one_is_complete_or_too_few_nodes_are_left(cluster, row):
    files = CLUSTERS[row["cluster"]]
    cluster.write(**files)
    before = {*cluster.directory.iterdir()}
    preflight = "" if "alive" in files else "--no-preflight"
    status, said = cluster.run(f"{row['line']} -- {LAUNCHER}", JOBS[row["job"]], preflight)
    expected = list(filter(None, row["steps"].split(" & ")))
    assert (status, len(cluster.steps)) == (int(row["status"]), len(expected)), said
    for step, parts in zip(cluster.steps, expected):
        assert all(part in step for part in parts.split("...")), step
    assert all(part in said for part in row["message"].split("...")), said
    assert {*cluster.directory.iterdir()} == before, "files are left"


def test_sruns_messages_name_the_nodes_that_failed():
    killed = "srun: error: n1: tasks 0-3: Killed\n"
    errors = f"srun: error: Node failure on n2\nsrun: error: Node failure on n[4-5]\n{killed}"
    assert list(failed_nodes(errors)) == ["n2", "n4", "n5"]
    assert not failed_nodes(killed)


def test_a_terminal_that_is_gone_does_not_change_the_status(cluster):
    cluster.write(step_1="echo Loss >&2; exit 0")
    source, target = os.pipe()
    os.close(source)
    assert cluster.start(f"--no-preflight -l -- {LAUNCHER}", stderr=target).wait(300) == 0
    os.close(target)


def test_an_exported_file_of_srun_is_an_error_of_silent(cluster):
    _, said = cluster.run(f"--silent 30 -- {LAUNCHER}", {**ENV, "SLURM_STDOUTMODE": "out.%t"})
    assert "Omit SLURM_STDOUTMODE;" in said


#: A srun that writes a part of a line, waits, and is then ended by a signal.
HANGS = "printf 'step\\r 1'; trap 'kill %1; exit 143' TERM; sleep 600 & wait"


def test_a_step_without_output_is_ended_and_runs_again_on_the_same_nodes(cluster):
    cluster.write(step_1=HANGS, step_2="printf complete; sleep 1.5; printf ' now' >&2")
    with (cluster.directory / "output").open("wb") as output:
        process = cluster.start("--no-preflight --silent 2 -- train", stdout=output, stderr=subprocess.PIPE)
        said = process.communicate(timeout=300)[1]
    assert (process.returncode, len(cluster.steps)) == (0, 2), said
    assert (cluster.directory / "output").read_bytes() == b"step\r 1complete"
    assert "pytorch-run: no output for 2 s: the stacks of the ranks, then the step is ended\n" in said
    assert "pytorch-stacks: " in said  # of the written squeue
    assert said.endswith(" now")


def test_a_step_that_writes_any_byte_is_not_ended_and_retries_have_a_limit(cluster):
    cluster.write(step_1="for i in 1 2 3 4 5 6; do printf .; sleep 0.5; done; exit 3")
    assert cluster.run("--silent 2 -- train")[0] == 3
    cluster.write(calls="", step_1=HANGS, step_2=HANGS)
    status, said = cluster.run("--silent 1 --retries 1 -- train")
    assert (status, len(cluster.steps)) == (143, 2)
    assert "run 2 exited with status 143, the last of --retries 1" in said


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
