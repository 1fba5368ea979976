"""The command, with stand-ins for Slurm's: `squeue` prints rows, and `srun` runs the collector once for each node."""

import os
import subprocess
import sys

import pytest
from programs import program
from pytorch_stacks import command
from pytorch_stacks.command import in_lines, read_lines
from stack_frames import rank


@pytest.fixture
def stacks(runscripts, tmp_path):
    """A function that runs the command; `rows` are what squeue prints."""

    def put(name, code):
        program(tmp_path / "bin" / name, code, "/bin/bash")

    def run(*arguments, rows="7|7|RUNNING|nid000[1-2]", srun=None, **env):
        put("squeue", f"echo '{rows}'")
        if srun is not None:
            put("srun", f'printf "%s\\n" "$@" > {tmp_path}/srun\n{srun}\n')
        env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path), **env}
        command, options = [runscripts / "pytorch-stacks", *arguments], {"capture_output": True, "text": True}
        return subprocess.run(command, env=env, timeout=300, check=False, **options)

    return run


def answer(node, *numbers):
    """Shell code which prints the answer of a node as `srun --label` does."""
    return printed(node, in_lines(node, [rank(number, node=node) for number in numbers]))


def printed(task, lines):
    return "cat <<'E'\n" + "".join(f"{task}: {line}\n" for line in lines.splitlines()) + "E\n"


def test_a_node_without_an_answer_and_its_ranks_are_named(stacks):
    code = answer("nid0001", 0, 1) + "echo 'srun: error: nid0002: task 1: Exited with exit code 1' >&2\n"
    code += "echo 'srun: error: Node nid0002 is down' >&2; exit 1\n"
    done = stacks("7", srun=code)
    assert done.returncode == 1
    assert "\nrank 2-3: no process found\n" in done.stdout
    assert done.stdout.endswith("\nnid0002: no answer: srun: error: Node nid0002 is down\n")


def test_srun_that_hangs_is_ended(monkeypatch, tmp_path):
    program(tmp_path / "srun", "exec sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(command, "STEP_SECONDS", -1)
    job = command.Job("7", "7", "RUNNING", "n1")
    assert command.ask_nodes(job, None, 1) == ([], [("n1", "no answer: timed out after 1 s")])


NO_RANK = (
    "no rank found: no Python with RANK and WORLD_SIZE among the processes of job 7. "
    "Start ranks with conda-python-distributed or torchrun"
)


@pytest.mark.parametrize(
    ("arguments", "squeue", "message"),
    [
        ("9", {"rows": ""}, "job 9 does not run: Slurm has no such job. Running jobs: squeue --me"),
        ("7", {"rows": "7|7|PENDING|"}, "job 7 does not run: its state is PENDING. Running jobs: squeue --me"),
        ("7", {"rows": "7+0|7|RUNNING|n1"}, "job 7 is heterogeneous. Run `pytorch-stacks --here` on each of its nodes"),
        ("", {}, "no job. Name one, as in `pytorch-stacks 1234` or `pytorch-stacks 1234.0`, see --help"),
        ("7", {"rows": "7|7|RUNNING|nid0001", "srun": answer("nid0001")}, NO_RANK),
    ],
)
def test_an_error_is_one_line_that_has_what_to_do(stacks, arguments, squeue, message):
    done = stacks(*arguments.split(), **squeue)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"pytorch-stacks: {message}\n")


@pytest.mark.parametrize("name", ["x", "7.batch", "-7", "7.0.0", "7 8"])
def test_a_job_is_a_number_or_an_element_of_an_array(stacks, name):
    assert stacks(name).returncode == 2
    assert stacks("7_3", rows="").stderr.startswith("pytorch-stacks: job 7_3 does not run")


def test_an_answer_survives_being_mixed_with_others():
    answers = {f"nid{node}": [rank(number) for number in range(40)] for node in range(3)}
    parts = [printed(f" {node[3:]}", in_lines(node, ranks)).splitlines()[1:-1] for node, ranks in answers.items()]
    assert max(len(line) for lines in parts for line in lines) < 1000
    mixed = [line for lines in zip(*parts) for line in reversed(lines)]
    assert read_lines("\n".join(["srun: noise", *mixed])) == answers
    assert set(read_lines("\n".join(mixed[1:]))) == {"nid0", "nid1"}


ARRAY = "7_2|7|PENDING|\n7_1|9|RUNNING|nid0002\n7_0|8|RUNNING|nid0001"


@pytest.mark.parametrize(
    ("rows", "arguments", "title", "asked"),
    [
        ("7_1|7|RUNNING|nid0001", "7_1.0", "job 7_1", ["--jobid=7 --nodes=1 --nodelist=nid0001 --of 7.0"]),
        (ARRAY, "7", "job 7_0", ["--jobid=8 --nodelist=nid0001 --of 8", "--jobid=9 --nodelist=nid0002 --of 9"]),
    ],
)
def test_an_array_and_its_elements_are_jobs(stacks, tmp_path, rows, arguments, title, asked):
    code = f"printf '%s ' \"$@\" >> {tmp_path}/all; echo >> {tmp_path}/all\n"
    done = stacks(arguments, rows=rows, srun=code + answer("nid0001", 0, 1, 2, 3))
    assert done.stdout.startswith(f"{title}, step 0: 4 ranks"), done.stderr
    called = (tmp_path / "all").read_text().splitlines()
    assert len(called) == len(asked)
    for line, words in zip(called, asked):
        assert {"--overlap", "--gres=none", *words.split()} <= set(line.split())


def test_a_real_rank_is_found_on_this_node(stacks, py_spy):
    py_spy('echo "${threads/9/$4}" >/dev/null; echo "$threads"')
    code = "print(flush=True); input()"
    world = {"RANK": "0", "WORLD_SIZE": "1", "PYTORCH_LAUNCH_ID": f"test-stacks-{os.getpid()}"}
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], env=world, **options) as process:
        process.stdout.readline()
        found = stacks("--here").stdout
        process.communicate(b"\n")
    assert f"launch test-stacks-{os.getpid()}: 1 rank on 1 node\nrank 0 (" in found
