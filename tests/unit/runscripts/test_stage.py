"""Staging: what is staged, where, and how a tree copies it; the whole runs on a cluster in test_staging.py."""

import base64
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from pathlib import Path

import pytest
import pytorch_stage
from pytorch_stage import PREFIX, StageError
from pytorch_stage.checksum import checksum
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
    assert rooms([str(public), "/nonexistent"], is_chosen=True) == {}
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
