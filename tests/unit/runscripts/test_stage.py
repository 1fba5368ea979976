"""Staging: what is staged, where, and how a tree copies it; the whole runs on a cluster in test_staging.py."""

import base64
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from pathlib import Path

import pytest
import pytorch_stage
from pytorch_stage import PREFIX, StageError
from pytorch_stage.__main__ import main
from pytorch_stage.channel import Channel, ClosedError
from pytorch_stage.checksum import checksum
from pytorch_stage.director import Director
from pytorch_stage.item import loaded_item
from pytorch_stage.places import choose, make, rooms, sweep
from pytorch_stage.starting import start_command, start_environment
from pytorch_stage.tree import Server, fetch, parent_of

ALL_BUT_THE_COMMAND = {path.stem for path in Path(pytorch_stage.__file__).parent.glob("*.py")} - {"__main__"}
SHA = "0123456789abcdef" * 4


@pytest.fixture
def root(tmp_path):
    """An installation with a packed file of 5 bytes and its record."""
    (tmp_path / "provenance").mkdir()
    (tmp_path / "venv.squashfs").write_bytes(b"hsqs!")
    (tmp_path / "provenance" / "packed.json").write_text(json.dumps({"sha256": SHA, "size": 5}))
    return tmp_path


def test_the_packed_file_of_the_module_is_staged_wherever_the_variable_leads(root):
    item = loaded_item({"CONTAINERROOT": str(root), "PYTORCH_PACKED": "/proc/1/fd/3"})
    assert (item.path, item.sha256, item.variables) == (str(root / "venv.squashfs"), SHA, ["PYTORCH_PACKED"])


def test_the_sites_copy_of_an_image_is_staged_if_the_installed_one_is_gone(root, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "x.sif").write_bytes(b"SIF")
    (root / "provenance" / "image.json").write_text(json.dumps({"sha256": SHA, "size": 3}))
    item = loaded_item({"CONTAINERROOT": str(root), "SIFPYTORCH": str(tmp_path / "site" / "x.sif")})
    assert (item.path, item.variables) == (str(tmp_path / "site" / "x.sif"), ["SIF", "SIFPYTORCH"])


def test_a_file_of_another_size_is_not_staged(root):
    (root / "venv.squashfs").write_bytes(b"hsq")
    with pytest.raises(StageError, match=r"has 3 bytes, and its installation recorded 5: install the module again"):
        loaded_item({"CONTAINERROOT": str(root), "PYTORCH_PACKED": str(root / "venv.squashfs")})


def test_without_a_record_or_a_module_there_is_nothing_to_stage(root):
    (root / "provenance" / "packed.json").unlink()
    with pytest.raises(StageError, match="cannot read .*packed.json"):
        loaded_item({"CONTAINERROOT": str(root), "PYTORCH_PACKED": str(root / "venv.squashfs")})
    with pytest.raises(StageError, match="no image or packed venv to stage"):
        loaded_item({"CONTAINERROOT": str(root)})


def test_the_first_directory_with_room_on_all_nodes_is_chosen():
    nodes = {"n1": {"/disk": 9, "/shm": 50}, "n2": {"/disk": 99, "/shm": 50}}
    assert choose(nodes, 9, ["/disk", "/shm"]) == "/disk"
    assert choose(nodes, 10, ["/disk", "/shm"]) == "/shm"
    with pytest.raises(StageError, match=r"not enough room on n1 for 0\.00 GB: /disk 0\.00 GB, /shm 0\.00 GB"):
        choose(nodes, 60, ["/disk", "/shm"])


def test_a_directory_that_every_user_can_change_is_not_used(tmp_path):
    public = tmp_path / "public"
    public.mkdir()
    assert str(public) in rooms([str(public)], is_chosen=True)
    public.chmod(0o777)
    assert rooms([str(public), str(tmp_path / "absent")], is_chosen=True) == {}
    public.chmod(0o1777)
    assert str(public) in rooms([str(public)], is_chosen=True)


def test_a_directory_that_is_not_of_this_node_is_not_used_unless_it_is_chosen():
    assert rooms(["/proc"], is_chosen=False) == {}


def test_only_directories_whose_processes_were_all_killed_are_swept(tmp_path):
    held, left, foreign = (tmp_path / name for name in (PREFIX + "held", PREFIX + "left", "another"))
    lock = make(str(held))
    os.close(make(str(left)))
    (left / "image.sif").write_bytes(b"x")
    foreign.mkdir()
    assert held.stat().st_mode & 0o777 == 0o700
    sweep([str(tmp_path)])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([held.name, foreign.name])
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)
    sweep([str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == [foreign.name]


def test_each_node_of_a_tree_has_two_children_and_all_reach_the_first():
    assert [parent_of(number) for number in range(7)] == [None, 0, 0, 1, 1, 2, 2]


def test_a_tree_copies_every_byte_while_it_arrives(tmp_path):
    data = os.urandom(5_000_000)
    (tmp_path / "source").write_bytes(data)
    servers = [Server("t" * 32) for _ in range(4)]
    files = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT, 0o600) for number in range(4)]

    def copy(number):
        parent = parent_of(number)
        source = str(tmp_path / "source") if parent is None else ["127.0.0.1", servers[parent].port]
        fetch(source, files[number], len(data), servers[number], token="t" * 32)

    threads = [threading.Thread(target=copy, args=(number,)) for number in reversed(range(4))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert {checksum(file) for file in files} == {hashlib.sha256(data).hexdigest()}


def test_a_tree_sends_nothing_without_the_token(tmp_path):
    (tmp_path / "source").write_bytes(b"x" * 100)
    server = Server("t" * 32)
    with (tmp_path / "first").open("wb") as first, (tmp_path / "second").open("wb") as second:
        fetch(str(tmp_path / "source"), first.fileno(), 100, server, token="t" * 32)
        with pytest.raises(StageError, match=r"only 0 of 100 bytes arrived|Connection reset"):
            fetch(["127.0.0.1", server.port], second.fileno(), 100, Server("u"), token="u" * 32)


@pytest.mark.parametrize("available", [None, 0, 40])
def test_who_waits_for_a_copy_that_was_given_up_learns_it_at_once(tmp_path, available):
    server = Server("t" * 32)
    with (tmp_path / "source").open("w+b") as source, (tmp_path / "copy").open("wb") as copy:
        source.truncate(100)
        if available is not None:
            server.announce(source.fileno(), 100, available)
        with ThreadPoolExecutor() as threads:
            copying = [["127.0.0.1", server.port], copy.fileno(), 100, Server("u")]
            waiting = threads.submit(fetch, *copying, token="t" * 32)
            with pytest.raises(NotDone):
                waiting.result(0.5)
            server.end()
            with pytest.raises(StageError, match=f"only {available or 0} of 100 bytes arrived"):
                waiting.result(60)


@pytest.fixture
def growing(tmp_path):
    """A Server, the descriptor of an empty file, and the checksum of this file as it grows, a Future."""
    server = Server("t" * 32)
    with (tmp_path / "growing").open("w+b") as file, ThreadPoolExecutor() as threads:
        yield server, file.fileno(), threads.submit(checksum, file.fileno(), server.await_more)
        server.announce(file.fileno(), 0, 0)  # ends the thread after a failure, too


def test_the_checksum_of_a_growing_file_is_that_of_the_whole_file(growing):
    server, file, result = growing
    steps, done = [b"", b"a" * 5_000_000, b"b", b"c" * 3_000_000], 0
    for step in steps:
        with pytest.raises(NotDone):
            result.result(0.2)
        done += os.write(file, step)
        server.announce(file, 8_000_001, done)
    assert result.result(60) == hashlib.sha256(b"".join(steps)).hexdigest()


def test_the_checksum_of_a_growing_file_is_of_what_was_written_and_not_of_what_arrived(tmp_path, growing):
    server, file, result = growing
    (tmp_path / "source").write_bytes(b"a" * 3_000_000)
    announce = server.announce

    def flip(*arguments):
        if arguments[-1]:
            os.pwrite(file, b"b", 0)
        announce(*arguments)

    server.announce = flip
    fetch(str(tmp_path / "source"), file, 3_000_000, server, token="t" * 32)
    assert result.result(60) == hashlib.sha256(b"b" + b"a" * 2_999_999).hexdigest()


@pytest.mark.parametrize("arrived", [0, 40])
def test_the_checksum_of_a_copy_that_fails_ends_with_it(tmp_path, growing, arrived):
    server, file, result = growing
    (tmp_path / "source").write_bytes(b"x" * arrived)
    with pytest.raises(StageError, match=f"only {arrived} of 100 bytes arrived"):
        fetch(str(tmp_path / "source"), file, 100, server, token="t" * 32)
    with pytest.raises(NotDone):
        result.result(0.2)
    server.end()
    assert result.result(60)


class SilentKeeper:
    """The connection to a keeper that only receives."""

    def __init__(self):
        self.received = []

    def send(self, **values):
        self.received.append(values)


def test_no_node_reads_from_a_loopback_address(root):
    item = loaded_item({"CONTAINERROOT": str(root), "PYTORCH_PACKED": str(root / "venv.squashfs")})
    director = Director(item, {"SLURM_JOB_ID": "7"}, [])
    keepers = {address: SilentKeeper() for address in ("127.0.0.1", "10.0.0.2", "10.0.0.3")}
    director.keepers = {keeper: {"address": address, "port": 5} for address, keeper in keepers.items()}
    director.copy("/disk/directory")
    assert [keeper.received for keeper in keepers.values()] == [
        [{"fetch": ["10.0.0.2", 5]}], [{"fetch": item.path}], [{"fetch": ["10.0.0.2", 5]}]
    ]  # fmt: skip


def test_a_keeper_that_was_killed_is_reported_before_what_follows_from_it_on_other_nodes(root):
    director = Director(None, {}, [])
    ends = {name: socket.socketpair() for name in ("n1", "n2")}
    director.keepers = {Channel(here): {"node": name} for name, (here, _) in ends.items()}
    Channel(ends["n1"][1]).send(problem="only 5 of 9 bytes arrived from n2")
    ends["n2"][1].close()
    with pytest.raises(ClosedError, match="the process on n2 was killed"):
        director.collect("ready")
    assert director.has_lost


@pytest.fixture
def stage_image(tmp_path, runscripts):
    """A function that stages `root/x.sif` in a job of one node, whose sbcast is a line of bash: path and message.

    The line has the shared file as $2, and the target as $3.
    """
    installation, commands, pids, disk = (tmp_path / name for name in ("root", "bin", "pids", "disk"))
    for directory in (installation / "provenance", commands, disk):
        directory.mkdir(parents=True)
    image = installation / "x.sif"
    image.write_bytes(os.urandom(3_000_000))
    record = {"sha256": hashlib.sha256(image.read_bytes()).hexdigest(), "size": 3_000_000}
    (installation / "provenance" / "image.json").write_text(json.dumps(record))
    commands.joinpath("srun").write_text(f"""#!/bin/bash
while [[ $1 == -* ]]; do shift; done
echo $$ >> {pids}; exec "$@"
""")
    env = {"CONTAINERROOT": installation, "SIFPYTORCH": image, "SLURM_JOB_ID": str(os.getpid()),
           "PATH": f"{commands}:{os.environ['PATH']}", "PYTORCH_LAUNCH_STAGE_DIR": disk}  # fmt: skip

    def stage(sbcast, **variables):
        commands.joinpath("sbcast").write_text(f"#!/bin/bash\n{sbcast}\n")
        for command in commands.iterdir():
            command.chmod(0o755)
        done = subprocess.run([runscripts / "pytorch-stage", "--print"], env={**env, **variables}, capture_output=True,
                              text=True, check=False, timeout=300)  # fmt: skip
        return Path(done.stdout.strip()), done.stderr

    yield stage
    os.kill(int(pids.read_text().split()[0]), signal.SIGTERM)
    deadline = time.monotonic() + 60
    while any(disk.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("variables", "is_called"),
    [({}, False), ({"PYTORCH_LAUNCH_STAGE": "1"}, False), ({"PYTORCH_LAUNCH_STAGE": "sbcast"}, True)],
)
def test_sbcast_copies_only_if_the_user_chose_it(stage_image, tmp_path, variables, is_called):
    path, message = stage_image(f"touch {tmp_path}/called; cp $2 $3", **variables)
    assert tmp_path / "disk" in path.parents, message
    assert "staged on 1 node " in message
    assert path.read_bytes() == (tmp_path / "root" / "x.sif").read_bytes()
    assert (tmp_path / "called").exists() == is_called


def test_the_tree_copies_where_sbcast_fails(stage_image, tmp_path):
    path, message = stage_image("head -c 1000 $2 > $3; exit 1", PYTORCH_LAUNCH_STAGE="sbcast")
    assert tmp_path / "disk" in path.parents, message
    assert path.read_bytes() == (tmp_path / "root" / "x.sif").read_bytes()


@pytest.mark.parametrize("how", ["1", "sbcast"])
def test_an_image_with_another_byte_is_not_used(stage_image, tmp_path, how):
    with (tmp_path / "root" / "x.sif").open("r+b") as file:
        byte = os.pread(file.fileno(), 1, 2_000_000)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1]), 2_000_000)
    path, message = stage_image("cp $2 $3", PYTORCH_LAUNCH_STAGE=how)
    assert path == Path()
    assert "x.sif is damaged: it was installed with SHA-256" in message


@pytest.mark.parametrize(("chosen", "exported"), [("0", "1"), ("1", "1"), ("sbcast", "sbcast")])
def test_the_ranks_of_a_packed_venv_copy_as_the_command_does(root, monkeypatch, capsys, chosen, exported):
    monkeypatch.setattr("pytorch_stage.__main__.obtain", lambda *_: "/proc/1/fd/3")
    values = {"CONTAINERROOT": root, "PYTORCH_PACKED": root / "venv.squashfs", "PYTORCH_LAUNCH_STAGE": chosen}
    for name, value in {**values, "SLURM_JOB_ID": "7"}.items():
        monkeypatch.setenv(name, str(value))
    assert main([]) == 0
    assert capsys.readouterr().out == f"export PYTORCH_LAUNCH_STAGE={exported} PYTORCH_STAGE_JOB=7\n"


def test_keepers_run_beside_the_steps_of_the_job_and_take_none_of_their_options(step):
    command = start_command({**step, "SLURM_JOB_NUM_NODES": "3"}, [])
    assert command[:5] == ["srun", "--jobid=7", "--overlap", "--nodes=3", "--ntasks=3"]
    kept = start_environment({**step, "SLURM_CONF": "/etc/slurm.conf", "SLURM_CPU_BIND": "quiet", "HOME": "/h"}, [])
    assert len(kept.pop("PYTORCH_STAGE_SOURCES")) < 1 << 17  # execve(2), MAX_ARG_STRLEN
    assert kept == {"SLURM_JOB_ID": "7", "SLURM_CONF": "/etc/slurm.conf", "HOME": "/h"}


def test_the_first_rank_imports_and_sends_what_was_written_at_the_installation_and_opens_no_other_file(
    tmp_path, runscripts
):
    shutil.copytree(runscripts, tmp_path / "runscripts")
    package = tmp_path / "runscripts" / "pytorch_stage"
    subprocess.run([sys.executable, package / "sources.py"], check=True)
    for path in (tmp_path / "runscripts").rglob("*.py"):
        if path.name != "pytorch_packed.py":
            path.unlink()
    file, sent = start_keepers(tmp_path / "runscripts")
    assert file == str(package / "rank.py")
    written = json.loads((package / "sources.json").read_text())
    assert {Path(name).stem for name in written if name.startswith("pytorch_stage")} == ALL_BUT_THE_COMMAND
    texts = json.loads(zlib.decompress(base64.b64decode(sent)))
    assert texts["pytorch_stage/keeper.py"] == (runscripts / "pytorch_stage" / "keeper.py").read_text()
    assert texts["pytorch_packed.py"] == (runscripts / "pytorch_packed.py").read_text()


@pytest.mark.parametrize("text", ["", '{"pytorch_packed.py": "', "{}"])
def test_the_first_rank_imports_the_modules_themselves_where_the_file_of_all_is_damaged(tmp_path, runscripts, text):
    shutil.copytree(runscripts, tmp_path / "runscripts")
    (tmp_path / "runscripts" / "pytorch_stage" / "sources.json").write_text(text)
    file, sent = start_keepers(tmp_path / "runscripts")
    assert file == str(tmp_path / "runscripts" / "pytorch_stage" / "rank.py")
    assert "pytorch_stage/keeper.py" in json.loads(zlib.decompress(base64.b64decode(sent)))


def start_keepers(runscripts):
    """Import what a first rank imports; return where `rank` comes from, and the modules that are sent to the nodes."""
    code = f"""packed = open({str(runscripts / "pytorch_packed.py")!r}).read()
exec(packed.partition("if __name__")[0])
prepare_import({str(runscripts)!r})
from pytorch_stage import rank, starting
starting.first_nodes({{"SLURM_JOB_NODELIST": "nid[1-2]"}})
print(rank.__file__, starting.start_environment({{}}, ["mpirun"])["PYTORCH_STAGE_SOURCES"])"""
    command = [sys.executable, "-I", "-S", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_outside_slurm_the_message_has_the_command_to_type():
    with pytest.raises(StageError, match="pytorch-stage -- mpirun --map-by ppr:1:node"):
        start_command({}, [])


def test_the_command_without_a_module_fails_and_so_does_the_line_that_sources_it(runscripts):
    line = f'source <({runscripts}/pytorch-stage) && echo sourced; "{runscripts}/pytorch-stage" --wrong; echo $?'
    done = subprocess.run(["bash", "-c", line], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.stdout == "2\n"
    assert "no image or packed venv to stage: load a PyTorch module" in done.stderr
    assert "unknown arguments '--wrong'. See --help" in done.stderr
