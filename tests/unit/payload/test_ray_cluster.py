"""What ray_cluster.py starts, and when it ends; Ray itself runs in tests/integration."""

import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
import ray_cluster
from training import TrainingError

RANK = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "GROUP_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "12345",
}


@pytest.fixture
def head():
    """A socket that listens in place of Ray's head, with its address and port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server, *server.getsockname()


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(ray_cluster, "INTERVAL", 0.05)


def sleeping(seconds):
    return subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds})"])


@pytest.fixture
def started(monkeypatch):
    """The commands that were started in place of Ray and of the script."""
    commands = []

    def start(command, env, **_):
        commands.append((command, env))
        return SimpleNamespace(wait=lambda *_: 7, poll=lambda: None, terminate=lambda: None)

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return commands


@pytest.mark.parametrize("rank", ["0", "1"])
def test_rank_0_starts_the_head_where_the_other_ranks_look_for_it_then_the_script(
    monkeypatch, tmp_path, started, head, rank
):
    server, host, port = head
    for name, value in {**RANK, "RANK": rank, "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "hsn0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ray_cluster, "wait_until", lambda *_: None)
    monkeypatch.setattr(ray_cluster, "wait_for_nodes", lambda *_: None)
    (tmp_path / "train.py").touch()
    status = ray_cluster.main(["--num-gpus=4", str(tmp_path / "train.py"), "--lr", "1"])
    ray, environment = started[0]
    role = {"--head", f"--port={port}", f"--node-ip-address={host}"} if rank == "0" else {f"--address={host}:{port}"}
    assert role < set(ray) and {"--num-gpus=4", "--block", "--min-worker-port=0", "--max-worker-port=0"} < set(ray)
    assert not set(environment) & set(RANK) and environment["GLOO_SOCKET_IFNAME"] == "hsn0"
    scripts = [command[2:] for command, _ in started[1:]]
    expected = ([[str(tmp_path / "train.py"), "--lr", "1"]], 7) if rank == "0" else ([], 0)
    assert (scripts, status) == expected


@pytest.mark.parametrize(("exported", "visible"), [({}, "4,5"), ({"HIP_VISIBLE_DEVICES": "0"}, "0")])
def test_the_gpus_that_slurm_gives_on_amd_are_those_that_ray_sees(exported, visible):
    environment = ray_cluster.ray_environment({"ROCR_VISIBLE_DEVICES": "4,5", **exported}, "/scratch/ray", "a:1")
    assert environment["HIP_VISIBLE_DEVICES"] == visible
    assert "ROCR_VISIBLE_DEVICES" not in environment


def test_a_wrong_launch_is_an_error_before_ray_starts(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(TrainingError, match="^Ray needs one rank on each node. "):
        ray_cluster.main(["train.py"])
    assert ray_cluster.main(["--num-gpus=2"]) == 2  # without a script


def test_a_rank_sees_whether_the_head_listens(head):
    server, *address = head
    assert ray_cluster.listens(tuple(address)) is True
    server.shutdown(socket.SHUT_RDWR)  # the port stays taken
    assert ray_cluster.listens(tuple(address)) is False


def test_a_rank_waits_only_so_long_and_ends_if_its_ray_node_ends():
    with sleeping(0) as node, pytest.raises(TrainingError, match="^the Ray node of this rank ended with status 0$"):
        ray_cluster.wait_until(lambda: False, node)
    with pytest.raises(TrainingError, match="^no Ray head at MASTER_ADDR and MASTER_PORT after 0.1 s$"):
        ray_cluster.wait_until(lambda: False, None, 0.1)
    with sleeping(600) as node:
        ray_cluster.wait_until(lambda: True, node)
        node.kill()


@pytest.mark.parametrize(("code", "status"), [("exit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_the_status_of_the_script_is_that_of_the_rank(tmp_path, monkeypatch, code, status):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    (tmp_path / "train.py").write_text(code)
    assert ray_cluster.run_script([str(tmp_path / "train.py")], {}) == status
