"""What ray_cluster.py starts, and when it ends; Ray itself runs in tests/integration."""

import socket
import subprocess
import sys

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
    """A socket that listens in place of Ray's head, and the launch whose ranks look for it there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server, ray_cluster.Launch({**RANK, "RANK": "1", "MASTER_PORT": str(server.getsockname()[1])})


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(ray_cluster, "INTERVAL", 0.05)


def sleeping(seconds):
    return subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds})"])


def test_options_before_the_script_are_those_of_ray_start():
    options = ["--object-store-memory=1000000000", "--num-gpus=2"]
    assert ray_cluster.split([*options, "train.py", "--lr", "1"]) == (options, ["train.py", "--lr", "1"])


def test_without_a_script_it_prints_its_usage(capsys):
    with pytest.raises(SystemExit) as end:
        ray_cluster.split(["--num-gpus=2"])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("usage: ray_cluster.py ")


def test_rank_0_starts_the_head_where_the_other_ranks_look_for_it():
    command = ray_cluster.start_command(ray_cluster.Launch(RANK), "10.0.0.1", 8, "/scratch/ray", ["--num-gpus=4"])
    assert command[3] == "start"
    assert {"--head", "--node-ip-address=10.0.0.1", "--port=12345", "--num-cpus=8", "--num-gpus=4"} < set(command)
    command = ray_cluster.start_command(ray_cluster.Launch({**RANK, "RANK": "1"}), "10.0.0.1", 8, "/scratch/ray", [])
    assert {"--address=10.0.0.1:12345", "--num-cpus=8", "--temp-dir=/scratch/ray", "--block"} < set(command)
    assert "--head" not in command
    command = ray_cluster.start_command(ray_cluster.Launch({**RANK, "RANK": "1"}), "fd00::1", 8, "/scratch/ray", [])
    assert "--address=[fd00::1]:12345" in command


def test_rays_processes_do_not_inherit_the_rank():
    given = {**RANK, "OMP_NUM_THREADS": "8", "GLOO_SOCKET_IFNAME": "hsn0"}
    changed = ray_cluster.ray_environment(given, "/scratch/ray")
    assert not set(changed) & {*RANK, "OMP_NUM_THREADS"}
    assert changed["GLOO_SOCKET_IFNAME"] == "hsn0"


@pytest.mark.parametrize(("exported", "visible"), [({}, "4,5"), ({"HIP_VISIBLE_DEVICES": "0"}, "0")])
def test_the_gpus_that_slurm_gives_on_amd_are_those_that_ray_sees(exported, visible):
    environment = ray_cluster.ray_environment({"ROCR_VISIBLE_DEVICES": "4,5", **exported}, "/scratch/ray")
    assert environment["HIP_VISIBLE_DEVICES"] == visible
    assert "ROCR_VISIBLE_DEVICES" not in environment


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"LOCAL_WORLD_SIZE": "4"}, "4 ranks on this node, but Ray needs one: srun -N2 -n2 on two nodes"),
        (
            {"RANK": ""},
            "no rank of a launch (invalid literal for int() with base 10: ''). Start it with conda-python-distributed",
        ),
    ],
)
def test_a_launch_with_other_ranks_is_an_error_that_says_how_to_start_it(changes, fault):
    with pytest.raises(TrainingError) as error:
        ray_cluster.Launch({**RANK, **changes})
    assert str(error.value) == fault


def test_a_missing_script_is_an_error_before_ray_starts(monkeypatch, tmp_path):
    for name, value in RANK.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrainingError, match=rf"^train.py: no such file in {tmp_path}\. Check the path$"):
        ray_cluster.main(["train.py"])


def test_a_rank_waits_for_the_head_only_so_long(head, monkeypatch):
    server, launch = head
    ray_cluster.wait_for_head(launch)
    server.close()
    monkeypatch.setattr(ray_cluster, "START_SECONDS", 0.1)
    with pytest.raises(TrainingError, match=r"^no Ray head at 127\.0\.0\.1:\d+ after 0\.1 s$"):
        ray_cluster.wait_for_head(launch)


def test_a_rank_ends_when_the_head_does(head):
    server, launch = head
    with sleeping(600) as node:
        server.close()
        ray_cluster.wait_for_end(launch, node)
        assert node.poll() is None
        node.kill()


def test_a_ray_node_that_ends_before_the_head_is_an_error(head):
    _, launch = head
    with sleeping(0) as node, pytest.raises(TrainingError, match="^the Ray node of rank 1 ended with status 0$"):
        ray_cluster.wait_for_end(launch, node)


@pytest.mark.parametrize(("code", "status"), [("pass", 0), ("exit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_the_status_of_the_script_is_that_of_the_rank(tmp_path, monkeypatch, code, status):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    (tmp_path / "train.py").write_text(code)
    assert ray_cluster.run_script([str(tmp_path / "train.py")], {}) == status
