"""`pytorch-doctor --job`: the first rank that failed, from the logs of all ranks."""

import json
import os
import resource

import pytest
from pytorch_launch.records import record

TRACEBACK = "Traceback (most recent call last):\n  File 'train.py', line 7, in <module>\n"
BAD = f"epoch 1\n{TRACEBACK}ValueError: bad batch\n"
#: As PyTorch writes it.
RESET = (
    f"epoch 1\n[rank1]: {TRACEBACK}"
    "[rank1]: RuntimeError: [gloo/transport/tcp/pair.cc:538] Connection closed by peer [10.0.0.2]:31\n"
)
NOON = 1795435200


@pytest.fixture
def launch(tmp_path):
    """A function that writes the logs of a launch: for each rank its output and the fields of its end."""

    def write(ranks, size=None, directory="7.0", start=""):
        place = tmp_path / "logs" / directory
        place.mkdir(parents=True, exist_ok=True)
        for number, (output, end) in ranks.items():
            fields = {"rank": number, "size": size or len(ranks), "node": f"nid{number // 2:06d}"}
            text = record("start", {**fields, "gpu": "0000:c6:00.0", "time": NOON - 60}) + output
            if end is not None:
                text += record("end", {"rank": number, **end})
            (place / f"rank-{number:05d}{start}.log").write_text(text)
        return place

    return write


def status(number, seconds=0.0, **fields):
    return {"status": number, **fields, "time": NOON + seconds}


TERM = {"signal": "SIGTERM", "after": "SIGTERM", "time": NOON + 1}


def test_the_rank_that_failed_is_named_with_its_node_gpu_and_last_lines(launch, doctor):
    logs = launch({0: ("", TERM), 1: ("", TERM), 2: (BAD, status(1)), 3: ("", TERM)})
    done = doctor("--job", str(logs))
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"{logs}: 4 ranks on 2 nodes"
    assert lines[1].startswith("first failed: rank 2 on nid000001, GPU 0000:c6:00.0: exited with status 1, at 20")
    assert lines[-3:] == [
        "    ValueError: bad batch",
        f"its log: {logs}/rank-00002.log",
        "ranks 0-1,3: was killed by SIGTERM: ended from outside",
    ]


@pytest.mark.parametrize("later", [0.5, -0.5], ids=["clock ahead", "clock behind"])
def test_a_rank_that_lost_another_is_not_the_first_whatever_its_clock(launch, doctor, later):
    logs = launch({0: (RESET, status(1, later)), 1: (BAD, status(1))})
    output = doctor("--job", str(logs)).stdout
    assert "first failed: rank 1 " in output
    assert "rank 0: exited with status 1: it lost another rank, or waited too long for it\n" in output


def test_the_file_system_decides_between_two_ranks_that_failed_by_themselves(launch, doctor):
    logs = launch({0: (BAD, status(1)), 3: (BAD, status(1, 0.25))}, size=4)
    assert "first failed: rank 0 " in doctor("--job", str(logs)).stdout
    (logs / "first-failed.log").symlink_to("rank-00003.log")
    output = doctor("--job", str(logs)).stdout
    assert "first failed: rank 3 " in output
    assert "rank 0 on nid000000 failed at the same time (-0.250 s, by the clocks of two nodes)" in output
    assert "ranks 1-2: no log" in output


def test_a_rank_without_an_end_is_the_first_if_others_lost_it(launch, doctor):
    logs = launch({0: (RESET, status(1)), 1: (RESET, status(1)), 2: ("epoch 1\n", None), 3: (RESET, status(1))})
    output = doctor("--job", str(logs)).stdout
    assert "first failed: rank 2 on nid000001, GPU 0000:c6:00.0: no end is recorded" in output


def test_a_log_that_the_launcher_could_not_end_counts_by_its_traceback(launch, doctor):
    """As where the file system was full."""
    logs = launch({0: ("", TERM), 1: (BAD, None)})
    assert "first failed: rank 1 " in doctor("--job", str(logs)).stdout


def test_a_rank_that_srun_ended_while_its_python_ended_is_named_by_its_error(launch, doctor):
    logs = launch({0: (RESET, status(1)), 1: (BAD, {**TERM}), 2: (f"{TRACEBACK}KeyboardInterrupt\n", TERM)})
    output = doctor("--job", str(logs)).stdout
    assert "first failed: rank 1 on nid000000, GPU" in output
    assert ": was killed by SIGTERM, with an error of its own, at 20" in output
    assert "rank 2: was killed by SIGTERM: ended from outside" in output


def test_a_launch_that_was_ended_from_outside_has_no_rank_that_failed(launch, doctor):
    logs = launch({0: ("", TERM), 1: ("", status(75, after="SIGTERM"))})
    done = doctor("--job", str(logs))
    assert done.returncode == 1
    assert done.stdout.splitlines()[1:] == [
        "no rank failed by itself",
        "rank 0: was killed by SIGTERM: ended from outside",
        "rank 1: exited with status 75 after SIGTERM: ended from outside",
    ]


def test_a_launch_whose_ranks_all_succeeded_is_success(launch, doctor):
    done = doctor("--job", str(launch({0: ("", status(0)), 1: ("", status(0))})))
    assert (done.returncode, done.stdout.splitlines()[1:]) == (
        0,
        ["no rank failed by itself", "ranks 0-1: exited with status 0"],
    )


def test_the_newest_start_of_each_rank_counts_and_only_ranks_of_its_world(launch, doctor):
    launch({number: (BAD, status(1)) for number in range(4)})
    logs = launch({0: ("", status(0)), 1: ("", status(0))}, start=".1")
    for path in logs.glob("*.1.log"):
        path.write_text(path.read_text().replace("T11:59", "T12:30"))
    assert doctor("--job", str(logs)).returncode == 0


def test_a_job_is_found_by_its_number_and_the_newest_launch_by_its_directory(launch, doctor):
    older, newer = launch({0: ("", status(0))}, directory="7.0"), launch({0: ("", status(0))}, directory="8.0")
    os.utime(older, (1, 1))
    logs = str(newer.parent)
    assert doctor("--job", PYTORCH_LAUNCH_LOG_DIR=logs).stdout.startswith(f"{newer}: ")
    assert doctor("--job", logs).stdout.startswith(f"{newer}: ")
    assert doctor("--job", "7", PYTORCH_LAUNCH_LOG_DIR=logs).stdout.startswith(f"{older}: ")
    assert doctor("--job", "7.0", PYTORCH_LAUNCH_LOG_DIR=logs).stdout.startswith(f"{older}: ")


def test_a_directory_without_logs_is_one_line_and_status_2(doctor, tmp_path):
    done = doctor("--job", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"pytorch-doctor: no logs of ranks in {tmp_path}. Name a directory with")


def test_512_ranks_are_compared_in_seconds_and_as_json(launch, doctor):
    ranks = {number: (RESET * 50, status(1, 0.1)) for number in range(512)}
    logs = launch({**ranks, 300: (BAD, status(1))})
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = json.loads(doctor("--job", str(logs), "--json").stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 20  # whatever else runs here
    assert (found["size"], found["first_failed"]["rank"], found["first_failed"]["node"]) == (512, 300, "nid000150")
    assert len(found["others"][0]["ranks"]) == 511
