"""Worlds that import torch from a slow file system: what is measured, and how it is written and drawn."""

import contextlib
import os
import re

import pytest

from benchmarks import starts
from benchmarks.starts import BROADCAST_BYTES, WAYS, Start, broadcast_seconds_per_byte, possible_ways
from benchmarks.table import starts_markdown
from testbed.cluster import slow_fs
from testbed.layout import Layout
from testbed.recipes import CONTAINER

STARTS = [
    *(Start("venv", ranks, seconds, False, 15_716.4, 98e6) for ranks, seconds in ((1, 3.5), (4, 6), (16, 25))),
    *(Start("venv", ranks, ranks * 0.8, True) for ranks in (16, 64, 4096)),
    Start("local disk", 1, 2.25, False),
]
#: A core in /proc/stat, with the time that its host took from it.
CORE = "cpu0 74608 2520 24433 1117073 6176 4054 0 {} 0 0"


def test_the_table_has_measured_worlds_first_and_the_calls_of_the_largest_of_them():
    header, _, venv, disk = starts_markdown(STARTS).splitlines()[2:6]
    assert header.split(" | ")[3:] == ["1", "4", "16", "16 replayed", "64 replayed", "4,096 replayed |"]
    assert venv == "| venv | 15,716 | 98.0 MB | 3.50 s | 6.00 s | 25.0 s | 12.8 s | 51.2 s | 3277 s |"
    assert disk == "| local disk | 0 | 0.0 MB | 2.25 s | – | – | – | – | – |"


def test_the_page_says_so_if_nothing_was_measured():
    assert starts_markdown([]) == "Not measured.\n"


def test_ways_without_containers_are_left_where_no_container_can_run():
    assert possible_ways(None) == list(WAYS)
    assert {way.recipe for way in possible_ways("no FUSE")} == {way.recipe for way in WAYS} - {CONTAINER}


def test_a_broadcast_takes_as_long_as_on_aurora_and_between():
    seconds = [broadcast_seconds_per_byte(nodes) * BROADCAST_BYTES for nodes in (8, 45.25, 256, 1024, 4096)]
    assert seconds == pytest.approx([69.7, (69.7 * 132.9) ** 0.5, 132.9, (132.9 * 750.6) ** 0.5, 750.6], rel=0.001)


def test_an_import_is_timed_until_the_last_rank_is_done_without_the_time_of_other_guests(monkeypatch):
    class Session:
        def run(self, command, _env):
            if command[0] == "bash":  # starts or ends the job
                return "7\n"
            assert command[:5] == ["srun", "--jobid=7", "-N4", "-n16", "--overcommit"]
            return "".join(f"imported at {100 + rank}.5 {CORE.format(250 + rank)}\n" for rank in range(16))

    monkeypatch.setattr(starts.time, "monotonic", lambda: 100)
    monkeypatch.setattr(starts, "ranks_core", lambda: CORE.format(150))
    local = next(way for way in WAYS if not way.cache)
    seconds, _, (start, end) = starts.import_torch(Session(), local, {}, 16)
    assert (start, end) == (100, 115.5)
    assert seconds == pytest.approx(15.5 - (265 - 150) / os.sysconf("SC_CLK_TCK"))


def test_a_later_step_is_timed_and_counted_without_the_step_that_stages(monkeypatch):
    commands = []

    class Session:
        layout = Layout.from_environment({})

        def run(self, command, _env):
            commands.append(command)
            return {"bash": "7\n", "srun": f"imported at 103 {CORE.format(0)}\n"}[command[0]]

    class Server:
        def counts(self):
            return slow_fs.Counts(100 * len(commands), 5)

    monkeypatch.setattr(starts.time, "monotonic", lambda: 100)
    monkeypatch.setattr(starts.slow_fs, "mounted", lambda *_, **__: contextlib.nullcontext(Server()))
    monkeypatch.setattr(starts, "ranks_core", lambda: CORE.format(0))
    later = next(way for way in WAYS if way.later)
    seconds, counts, _ = starts.import_torch(Session(), later, {}, 1)
    assert (seconds, counts) == (3, slow_fs.Counts(100, 0))
    allocate, stage, measured, end = commands
    assert {"--jobid=7", "--cpu-bind=map_cpu:0"} <= set(stage) and stage[:-1] == measured[:-1]
    assert stage[-1] == "pass"
    assert allocate[-4:] == ["-N1", "-n1", "--overcommit", "--exclusive"] and end[-1] == "7"


def test_the_picture_has_a_line_for_each_way_and_open_marks_for_replayed_worlds():
    pytest.importorskip("matplotlib")
    from benchmarks.start_picture import LINES, MARKERS, draw_starts

    assert min(len(MARKERS), len(LINES)) >= len(WAYS)
    picture = draw_starts(STARTS)
    words = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    assert {"venv", "local disk", "4,096", "Lustre (OLCF)"} <= set(words)
    assert picture == draw_starts(STARTS)
