"""Where the ranks meet: the same place for all of a world, a place of its own for each world."""

import socket

import pytest
from pytorch_launch import rendezvous as module
from pytorch_launch.rendezvous import (
    LOWEST_PORT,
    SPAN,
    STEPS,
    RendezvousError,
    free_port,
    rendezvous,
    step_port,
)
from pytorch_launch.world import discover

EPHEMERAL = range(32768, 61000)
SPECIAL_STEPS = range(4294967290, 4294967296)


def test_every_rank_computes_the_same_place(step):
    places = []
    for rank in range(4):
        step.update(SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank % 2), SLURM_NODEID=str(rank // 2))
        places.append(rendezvous({}, discover(step, "vm"), pid=1000 + rank))
    assert places == [{"MASTER_ADDR": "nid001002", "MASTER_PORT": str(step_port(7, 0))}] * 4


def test_steps_of_neighbouring_jobs_never_share_a_port():
    """Exhaustive: what collides depends on job and step differences and on the remainder only.

    `step_port` is a remainder of job * STEPS + step, so pairs (first job, second job) and
    (first job + 1, second job + 1) collide alike; every difference is tried from two jobs.
    """
    for first_job in (1, 12345678):
        owner = {}
        for job in range(first_job, first_job + 317):
            for step in range(STEPS):
                port = step_port(job, step)
                assert owner.setdefault(port, (job, step)) == (job, step)


def test_the_guarantee_covers_jobs_200_and_steps_60_apart_wherever_they_start():
    for start in range(0, SPAN, 97):
        ports = {step_port(start + job, 1000 + step) for job in (0, 1, 199, 200) for step in (0, 60)}
        assert len(ports) == 8


def test_the_port_after_the_guarantee_is_shared():
    assert step_port(0, 0) == step_port(317, SPAN - 317 * STEPS)
    assert 0 <= SPAN - 317 * STEPS < STEPS


def test_every_port_is_used_and_none_of_them_belongs_to_others():
    ports = {step_port(job, 0) for job in range(SPAN)}
    assert ports == set(range(LOWEST_PORT, LOWEST_PORT + SPAN))
    assert min(ports) >= 10000
    assert not ports.intersection(EPHEMERAL)
    assert not ports.intersection((29400, 29500))


@pytest.mark.parametrize("special", SPECIAL_STEPS)
def test_a_special_step_keeps_clear_of_the_ordinary_steps_of_its_job(special):
    assert step_port(7, special) not in {step_port(7, step) for step in range(STEPS)}
    assert LOWEST_PORT <= step_port(2**32 - 1, special) < LOWEST_PORT + SPAN


def test_a_reserved_port_wins_over_a_computed_one(step):
    step["SLURM_STEP_RESV_PORTS"] = "12000-12003"
    assert rendezvous({}, discover(step, "vm"), pid=1)["MASTER_PORT"] == "12000"


def test_what_the_user_exported_wins_over_everything(step):
    step["SLURM_STEP_RESV_PORTS"] = "12000-12003"
    env = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"}
    assert rendezvous(env, discover(step, "vm"), pid=1) == env


def test_an_empty_export_is_none(step):
    env = {"MASTER_ADDR": "", "MASTER_PORT": ""}
    assert rendezvous(env, discover(step, "vm"), pid=1)["MASTER_ADDR"] == "nid001002"


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http", "1e4", " 80"])
def test_an_exported_port_that_is_none_is_an_error(port):
    with pytest.raises(RendezvousError, match=f"MASTER_PORT={port} "):
        rendezvous({"MASTER_PORT": port}, discover({}, "vm"), pid=1)


@pytest.mark.parametrize("port", ["1", "65535"])
def test_the_outermost_ports_can_be_exported(port):
    place = rendezvous({"MASTER_PORT": port}, discover({}, "vm"), pid=1)
    assert place["MASTER_PORT"] == port


def test_a_single_process_meets_itself_on_the_loopback(batch_script):
    place = rendezvous({}, discover(batch_script, "vm"), pid=1)
    assert place["MASTER_ADDR"] == "127.0.0.1"


def test_a_single_process_passes_over_a_busy_port():
    start = free_port(1234) - LOWEST_PORT
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", LOWEST_PORT + start))
        busy.listen()
        port = int(rendezvous({}, discover({}, "vm"), pid=start)["MASTER_PORT"])
    assert port != LOWEST_PORT + start
    assert port == free_port(start + 1)


def test_the_search_for_a_free_port_starts_anew_at_the_end_of_the_range(monkeypatch):
    monkeypatch.setattr(module, "_is_free", lambda port: port == LOWEST_PORT)
    assert free_port(SPAN - 1) == LOWEST_PORT


def test_a_node_without_a_free_port_is_an_error(monkeypatch):
    monkeypatch.setattr(module, "_is_free", lambda _port: False)
    with pytest.raises(RendezvousError, match="no free port from 10000 to 29390"):
        free_port(1)


def test_rank_0_elsewhere_than_on_the_first_host_is_an_error(step):
    """`srun --distribution=arbitrary`: the host file starts with nid001003."""
    step.update(SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODEID="1")
    world = discover(step, "vm")
    with pytest.raises(RendezvousError, match="rank 0 runs on nid001003.*nid001002"):
        rendezvous({}, world, pid=1)
    assert rendezvous({"MASTER_ADDR": "nid001003"}, world, pid=1)["MASTER_ADDR"] == "nid001003"
