"""training/checkpoint.py: the old file or the new one, never a part, and never code that is not ours."""

import errno
import io
import os
import pickle
import random
import re
import resource
import stat
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training import TrainingError
from training.checkpoint import Checkpoints, Position, Run, load_model, make_directory, save_model
from training.distributed import process_group
from training.resuming import Extent

STATE = {"weight": torch.arange(6.0).view(2, 3)}


def full_disk(_descriptor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_saved_model_can_be_loaded_without_trusting_pickle(tmp_path):
    save_model(STATE, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    assert loaded.keys() == STATE.keys()
    assert torch.equal(loaded["weight"], STATE["weight"])


def test_a_saved_model_replaces_the_old_one_and_leaves_nothing_else(tmp_path):
    (tmp_path / "model.pt").write_text("old")
    save_model(STATE, tmp_path / "model.pt")
    assert torch.load(tmp_path / "model.pt", weights_only=True)
    assert os.listdir(tmp_path) == ["model.pt"]


def test_a_full_disk_leaves_the_old_model_and_no_temporary_file(tmp_path, monkeypatch):
    (tmp_path / "model.pt").write_text("old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(TrainingError, match="model.pt: cannot be written .No space left on device.; .*free some space"):
        save_model(STATE, tmp_path / "model.pt")
    assert (tmp_path / "model.pt").read_text() == "old"
    assert os.listdir(tmp_path) == ["model.pt"]


def test_a_directory_in_the_place_of_the_model_is_an_error_that_leaves_no_temporary_file(tmp_path):
    (tmp_path / "model.pt").mkdir()
    with pytest.raises(TrainingError, match="Is a directory"):
        save_model(STATE, tmp_path / "model.pt")
    assert os.listdir(tmp_path) == ["model.pt"]


def test_the_model_is_on_the_disk_before_it_takes_the_place_of_the_old_one(tmp_path, monkeypatch):
    (tmp_path / "model.pt").write_text("old")
    seen_at_sync = []
    monkeypatch.setattr(os, "fsync", lambda _descriptor: seen_at_sync.append((tmp_path / "model.pt").read_bytes()))
    save_model(STATE, tmp_path / "model.pt")
    # the file, and then the directory with its new name
    assert [content == b"old" for content in seen_at_sync] == [True, False]


def test_whoever_is_reading_the_old_model_reads_it_to_its_end(tmp_path):
    (tmp_path / "model.pt").write_text("old")
    with (tmp_path / "model.pt").open() as reader:
        save_model(STATE, tmp_path / "model.pt")
        assert reader.read() == "old"


def test_others_may_read_the_model_as_far_as_the_umask_lets_them(tmp_path):
    umask = os.umask(0o022)
    try:
        save_model(STATE, tmp_path / "model.pt")
    finally:
        os.umask(umask)
    assert (tmp_path / "model.pt").stat().st_mode & 0o777 == 0o644


def test_a_directory_is_made_with_its_parents_and_stays_empty(tmp_path):
    make_directory(tmp_path / "runs" / "first")
    assert os.listdir(tmp_path / "runs" / "first") == []


def test_a_directory_that_is_there_already_is_taken(tmp_path):
    (tmp_path / "model.pt").write_text("old")
    make_directory(tmp_path)
    assert os.listdir(tmp_path) == ["model.pt"]


def test_a_file_in_the_place_of_the_directory_is_an_error(tmp_path):
    (tmp_path / "model").write_text("a file")
    with pytest.raises(TrainingError, match="model: cannot be written .File exists.; name another directory"):
        make_directory(tmp_path / "model")


def test_a_directory_without_room_for_files_is_an_error(tmp_path, monkeypatch):
    def read_only(**_arguments):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("tempfile.TemporaryFile", read_only)
    with pytest.raises(TrainingError, match="Read-only file system.*bound"):
        make_directory(tmp_path)


@pytest.fixture
def checkpoints(tmp_path):
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints", keep=3)
    checkpoints.prepare()
    return checkpoints


def names(checkpoints):
    return sorted(os.listdir(checkpoints.directory))


def test_the_newest_state_is_found_again_with_the_file_that_it_was_in(checkpoints):
    assert checkpoints.latest() is None
    checkpoints.save(STATE, epoch=1, step=0)
    path = checkpoints.save({**STATE, "epoch": 1, "names": ["a", {"b": 0.5}]}, epoch=1, step=120)
    assert path == checkpoints.directory / "epoch-0001-step-000120.pt"
    state = checkpoints.latest()
    assert torch.equal(state.pop("weight"), STATE["weight"])
    assert state == {"epoch": 1, "names": ["a", {"b": 0.5}], "file": str(path)}


def test_the_last_three_and_the_best_are_kept(checkpoints):
    for epoch in range(1, 6):
        checkpoints.save({"epoch": epoch}, epoch=epoch, step=0, best=epoch == 2)
    assert names(checkpoints) == ["best.pt", *(f"epoch-000{epoch}-step-000000.pt" for epoch in (3, 4, 5))]
    assert checkpoints.latest()["epoch"] == 5
    assert checkpoints.best()["epoch"] == 2


def test_what_comes_later_is_told_by_the_numbers_and_not_by_the_letters(checkpoints):
    for epoch, step in ((9999, 0), (9999, 1_000_000), (10_000, 0)):
        checkpoints.save({"at": (epoch, step)}, epoch=epoch, step=step)
        assert checkpoints.latest()["at"] == (epoch, step)


def test_files_that_are_not_checkpoints_are_left_alone(checkpoints):
    others = ["notes.txt", ".hidden", "epoch-3.pt", "epoch-0003-step-000000.pt.bak", ".notes.txt.0a1b2c3d"]
    for name in others:
        (checkpoints.directory / name).write_text("mine")
        (checkpoints.directory.parent / name).write_text("mine")
    for epoch in range(1, 6):
        checkpoints.save(STATE, epoch=epoch, step=0)
    checkpoints.prepare(restart=True)
    assert names(checkpoints) == sorted(others)
    assert sorted(os.listdir(checkpoints.directory.parent)) == sorted([*others, "checkpoints"])


def test_what_a_killed_run_left_half_written_is_cleared_away(checkpoints):
    checkpoints.save(STATE, epoch=1, step=0)
    for path in ("checkpoints/.epoch-0002-step-000000.pt.0a1b2c3d", "checkpoints/.best.pt.0a1b2c3d",
                 ".mnist_ddp.pt.0a1b2c3d", ".metrics.jsonl.0a1b2c3d", ".curves.png.0a1b2c3d"):  # fmt: skip
        (checkpoints.directory.parent / path).write_text("half")
    checkpoints.prepare()
    assert names(checkpoints) == ["epoch-0001-step-000000.pt"]
    assert os.listdir(checkpoints.directory.parent) == ["checkpoints"]


def test_to_restart_is_to_delete_the_checkpoints(checkpoints):
    checkpoints.save(STATE, epoch=1, step=0, best=True)
    checkpoints.prepare(restart=True)
    assert names(checkpoints) == []
    assert checkpoints.latest() is None and checkpoints.best() is None


def test_a_checkpoint_that_lacks_its_end_is_left_for_the_one_before(checkpoints, capsys):
    checkpoints.save({"epoch": 1}, epoch=1, step=0)
    path = checkpoints.save({"epoch": 2}, epoch=2, step=0)
    content = path.read_bytes()
    for length in (0, 1, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        assert checkpoints.latest()["epoch"] == 1
        line = capsys.readouterr().out
        assert re.fullmatch(rf"{path}: damaged \(.+\); going back to the checkpoint before\n", line)


def test_no_flipped_bit_goes_unnoticed_or_else_it_changes_nothing(checkpoints, capsys):
    """Of about 3,000 bytes; some, such as a file's date in the archive, are read by nobody."""
    checkpoints.save({"epoch": 1}, epoch=1, step=0)
    state = {"epoch": 2, "weight": torch.arange(200.0), "names": ["a", "b"]}
    path = checkpoints.save(state, epoch=2, step=0)
    content = path.read_bytes()
    noticed = 0
    for position in random.Random(5).sample(range(len(content)), 400):  # noqa: S311
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        found = checkpoints.latest()
        if found["epoch"] == 1:
            noticed += 1
            assert "epoch-0002-step-000000.pt: damaged (" in capsys.readouterr().out
        else:
            assert torch.equal(found["weight"], state["weight"]) and found["names"] == state["names"]
    position = content.index(torch.arange(200.0).numpy().tobytes()) + 100
    path.write_bytes(content[:position] + b"?" + content[position + 1 :])
    assert checkpoints.latest()["epoch"] == 1, "torch.load alone does not see a wrong number"
    assert noticed > 100


def test_where_all_are_damaged_the_run_does_not_begin_anew_by_itself(checkpoints):
    for epoch in (1, 2):
        checkpoints.save(STATE, epoch=epoch, step=0, best=True).write_text("damaged")
    with pytest.raises(TrainingError, match="checkpoints: none of the 2 checkpoints is whole; .*--restart$"):
        checkpoints.latest()
    (checkpoints.directory / "best.pt").write_text("damaged")
    with pytest.raises(TrainingError, match=r"best.pt: damaged \(.*\); take another checkpoint$"):
        checkpoints.best()


def test_a_damaged_checkpoint_is_put_aside_by_the_run_that_went_on_without_it(checkpoints):
    checkpoints.keep = 1
    checkpoints.save(STATE, epoch=4, step=0)
    checkpoints.keep = 9
    for epoch in (5, 6):
        checkpoints.save(STATE, epoch=epoch, step=0).write_text(f"damaged {epoch}")
    assert checkpoints.latest()["file"].endswith("epoch-0004-step-000000.pt")
    checkpoints.save(STATE, epoch=5, step=0)  # under the name of a damaged one
    whole = ["epoch-0004-step-000000.pt", "epoch-0005-step-000000.pt"]
    assert names(checkpoints) == [*whole, "epoch-0005-step-000000.pt.damaged", "epoch-0006-step-000000.pt.damaged"]
    assert checkpoints.latest()["file"].endswith(whole[1])
    assert (checkpoints.directory / "epoch-0005-step-000000.pt.damaged").read_text() == "damaged 5"
    checkpoints.prepare(restart=True)
    assert names(checkpoints) == []


class Malice:
    """Makes whoever unpickles it run a command."""

    def __init__(self, witness):
        self.witness = witness

    def __reduce__(self):
        return (Path.touch, (self.witness,))


def test_a_malicious_checkpoint_is_refused_and_its_code_is_not_run(checkpoints, tmp_path, capsys):
    witness = tmp_path / "code was run"
    pickle.loads(pickle.dumps(Malice(witness)))  # noqa: S301 (ours)
    assert witness.exists(), "the malice works"
    witness.unlink()

    path = checkpoints.save(STATE, epoch=1, step=0)
    torch.save({"epoch": Malice(witness)}, path)
    with pytest.raises(TrainingError, match=f"^{path}: refused, and nothing in it was run: .*; delete it unless"):
        checkpoints.latest()
    path.rename(checkpoints.directory / "best.pt")
    with pytest.raises(TrainingError, match="best.pt: refused"):
        checkpoints.best()

    checkpoints.save(STATE, epoch=1, step=0)
    path = checkpoints.directory / "epoch-0002-step-000000.pt"
    path.write_bytes(pickle.dumps({"epoch": Malice(witness)}))
    assert checkpoints.latest()["file"].endswith("epoch-0001-step-000000.pt")
    assert "epoch-0002-step-000000.pt: damaged (" in capsys.readouterr().out
    torch.save({"epoch": Malice(witness)}, path, _use_new_zipfile_serialization=False)
    assert checkpoints.latest()["file"].endswith("epoch-0001-step-000000.pt")
    assert not witness.exists()


def test_a_program_of_torchscript_is_refused_before_torch_sees_it(checkpoints, monkeypatch):
    checkpoints.save(STATE, epoch=1, step=0)
    path = checkpoints.directory / "epoch-0002-step-000000.pt"
    torch.jit.save(torch.jit.trace(nn.Linear(3, 2), torch.ones(1, 3)), str(path))
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("torch.load was called"))
    with pytest.raises(TrainingError, match=f"^{path}: refused, and nothing in it was run: "):
        checkpoints.latest()


def test_a_checkpoint_that_cannot_be_read_is_not_taken_for_damaged(checkpoints, monkeypatch):
    for epoch in (1, 2):
        checkpoints.save(STATE, epoch=epoch, step=0)
    before = names(checkpoints)

    def fail(*_):
        raise error

    monkeypatch.setattr("training.checkpoint.read_file", fail)
    error = OSError(errno.EIO, os.strerror(errno.EIO))
    with pytest.raises(TrainingError, match=r"epoch-0002-step-000000.pt: cannot be read \(Input/output error\); start"):
        checkpoints.latest()
    monkeypatch.undo()
    monkeypatch.setattr(torch, "load", lambda *_, **__: fail(None))
    error = MemoryError()
    with pytest.raises(TrainingError, match="not enough memory to read it; ask for more, nothing was changed$"):
        checkpoints.latest()
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ...")
    with pytest.raises(TrainingError, match="not enough memory"):
        checkpoints.latest()
    assert names(checkpoints) == before


def test_a_file_system_that_brings_no_directory_to_the_disk_is_no_hindrance(tmp_path, monkeypatch):
    def fsync(descriptor, real=os.fsync):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    number = errno.EINVAL
    save_model(STATE, tmp_path / "model.pt")
    assert (tmp_path / "model.pt").exists()
    number = errno.EIO
    with pytest.raises(TrainingError, match="cannot be written"):
        save_model(STATE, tmp_path / "model.pt")


def test_two_runs_in_one_directory_are_one_too_many(checkpoints):
    checkpoints.prepare()  # the same run, once more
    half = checkpoints.directory / ".best.pt.0a1b2c3d"
    half.write_text("the first run is writing this")
    with pytest.raises(TrainingError, match=f"^{checkpoints.directory}: another run is writing there; wait for"):
        Checkpoints(checkpoints.directory).prepare(restart=True)
    assert half.exists()


def test_the_directory_is_free_again_when_the_run_is_gone(tmp_path):
    for _ in range(2):
        Checkpoints(tmp_path / "run").prepare()


def test_a_file_system_without_locks_is_no_hindrance(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", no_locks)
    Checkpoints(tmp_path / "run").prepare()


def test_a_file_that_may_not_grow_any_more_leaves_the_checkpoints_as_they_were(checkpoints):
    checkpoints.save({"epoch": 1}, epoch=1, step=0, best=True)
    before = names(checkpoints)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(TrainingError, match="best.pt: cannot be written .File too large.; what was there before"):
            checkpoints.save({"weights": torch.ones(2000)}, epoch=2, step=0, best=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(checkpoints) == before
    assert checkpoints.latest()["epoch"] == checkpoints.best()["epoch"] == 1


def test_a_disk_that_gives_back_other_bytes_is_found_out_before_the_old_file_is_gone(checkpoints, monkeypatch):
    checkpoints.save({"epoch": 1}, epoch=1, step=0)
    monkeypatch.setattr(os, "posix_fadvise", lambda file, *_: os.pwrite(file, b"?", 500))
    with pytest.raises(TrainingError, match="cannot be written .other bytes were read back than were written.; "):
        checkpoints.save({"epoch": 1, "more": True}, epoch=1, step=0)
    assert names(checkpoints) == ["epoch-0001-step-000000.pt"]
    assert "more" not in checkpoints.latest()


@pytest.fixture
def alone():
    """A world of one rank."""
    with process_group({}, use_gpu=False, timeout=10) as world:
        yield world


def small_run(world, **settings):
    """A network with random masks, whose steps depend on the random state; and what trains it."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    return Run(network, optimizer, schedule, {"epochs": 3, **settings}, world)


def take_steps(run, count):
    for _ in range(count):
        run.optimizer.zero_grad()
        run.network(torch.randn(16, 4)).square().sum().backward()
        run.optimizer.step()
        run.schedule.step()
        run.position.step += 1


def test_a_run_goes_on_with_weights_optimizer_schedule_position_and_random_state(checkpoints, alone):
    through = small_run(alone)
    take_steps(through, 3)
    assert through.save(checkpoints) == checkpoints.directory / "epoch-0000-step-000003.pt"
    take_steps(through, 4)

    resumed = small_run(alone)
    assert resumed.resume(checkpoints) == str(checkpoints.directory / "epoch-0000-step-000003.pt")
    take_steps(resumed, 4)
    assert resumed.position == through.position == Position(step=7)
    assert resumed.schedule.get_last_lr() == through.schedule.get_last_lr() == [0.1 / 8]
    for name, weight in through.network.state_dict().items():
        assert torch.equal(resumed.network.state_dict()[name], weight)


@pytest.mark.parametrize("fused", [False, True])
def test_a_run_goes_on_with_the_optimizer_that_its_own_machine_can_do(checkpoints, alone, fused):
    def run(fused):
        run = small_run(alone)
        run.optimizer = torch.optim.Adam(run.network.parameters(), lr=0.1, fused=fused)
        run.schedule = torch.optim.lr_scheduler.StepLR(run.optimizer, step_size=2, gamma=0.5)
        return run

    before, after = run(not fused), run(fused)
    take_steps(before, 3)
    before.save(checkpoints)
    after.resume(checkpoints)
    assert after.optimizer.param_groups[0]["fused"] is fused
    take_steps(after, 1)


def test_a_run_without_a_checkpoint_begins(checkpoints, alone):
    run = small_run(alone)
    assert run.resume(checkpoints) is None
    assert run.position == Position()


def test_the_best_is_that_of_the_best_epoch(checkpoints, alone):
    run = small_run(alone)
    for accuracy, best in ((0, 1), (70, 2), (60, 2), (70, 2), (71, 5)):
        run.position.end_epoch(accuracy)
        run.save(checkpoints)
        assert checkpoints.best()["position"]["epoch"] == best
        take_steps(run, 1)
        run.save(checkpoints)  # in the middle of an epoch nothing was measured
        assert checkpoints.best()["position"]["epoch"] == best


def test_options_that_make_another_run_are_refused_by_their_names_and_values(checkpoints, alone):
    small_run(alone, **{"learning rate": 0.1, "seed": 1}).save(checkpoints)
    with pytest.raises(TrainingError) as error:
        small_run(alone, epochs=5, **{"learning rate": 0.2, "seed": 1}).resume(checkpoints)
    assert str(error.value) == (
        f"{checkpoints.directory}/epoch-0000-step-000000.pt: made with epochs 3 (now 5), learning rate 0.1 (now 0.2); "
        "start with the same options, name another directory with --modelpath, or begin anew with --restart"
    )


@pytest.mark.parametrize(
    ("before", "now"), [([0.9, 0.99], [0.9, 0.999]), ("x" * 50, "x" * 49 + "y"), ({"a": 1}, {"a": 2}), (None, 0)]
)
def test_settings_may_be_lists_dicts_and_long_strings(checkpoints, alone, before, now):
    small_run(alone, more=before).save(checkpoints)
    small_run(alone, more=before).resume(checkpoints)
    with pytest.raises(TrainingError, match="made with more "):
        small_run(alone, more=now).resume(checkpoints)


def test_a_checkpoint_of_another_program_is_refused(checkpoints, alone):
    checkpoints.save({"model": {}, "loss": 3.0}, epoch=1, step=0)
    with pytest.raises(TrainingError, match="step-000000.pt: has no optimizer, position, random, schedule, settings"):
        small_run(alone).resume(checkpoints)


def first(state):
    """The optimizer's state of the first weight, float32 [8, 4]."""
    return state["optimizer"]["state"][0]


def group(state):
    return state["optimizer"]["param_groups"][0]


def laughs():
    """A list of 2^40 words that share their memory."""
    words = ["ha"]
    for _ in range(40):
        words = [words, words]
    return words


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("optimizer.state..0..exp_avg. is a tensor", lambda s: first(s).update(exp_avg=torch.zeros(3))),
        ("expected a tensor of torch.float32 with", lambda s: first(s).update(exp_avg=torch.zeros(8, 4).double())),
        ("with the shape .1099511627776.", lambda s: first(s).update(exp_avg=torch.zeros(1).expand(2**40))),
        ("exp_avg. is x, expected a tensor", lambda s: first(s).update(exp_avg="x")),
        ("has other names: exp_avg$", lambda s: first(s).pop("exp_avg")),
        ("optimizer has a state of other parameters", lambda s: s["optimizer"]["state"].update({99: {}})),
        ("optimizer has a state of other parameters", lambda s: s["optimizer"].update(state=[1])),
        ("amsgrad. is True, expected False", lambda s: group(s).update(amsgrad=True)),
        ("lr. is x, expected 0.1", lambda s: group(s).update(lr="x")),
        ("params. is a list of 1, expected a list of 4", lambda s: group(s).update(params=[0])),
        ("param_groups. is a list of 0, expected a list of 1", lambda s: s["optimizer"].update(param_groups=[])),
        ("schedule.last_epoch. is not 3", lambda s: s["schedule"].update(last_epoch=5)),
        ("schedule is a list", lambda s: s.update(schedule=[1])),
        ("position.step. is 1000000000, expected 0 to 9", lambda s: s["position"].update(step=10**9)),
        ("position.epoch. is 1000000000, expected 0 to 3", lambda s: s["position"].update(epoch=10**9)),
        ("position.epoch. is -1,", lambda s: s["position"].update(epoch=-1)),
        ("position.epoch. is 1, expected 0", lambda s: s["position"].update(epoch="1")),
        ("position.samples. is 2 after 3 steps", lambda s: s["position"].update(samples=2)),
        ("position.seconds. is nan", lambda s: s["position"].update(seconds=float("nan"))),
        ("position has other names", lambda s: s["position"].update(more=1)),
        ("random is None", lambda s: s.update(random=None)),
        ("random.0..cpu. is a tensor", lambda s: s["random"][0].update(cpu=torch.zeros(3, dtype=torch.uint8))),
        ("model.0.weight. is a tensor", lambda s: s["model"].update({"0.weight": torch.zeros(3)})),
        ("model is a list", lambda s: s.update(model=[1])),
        ("model has other names", lambda s: s.update(model={1: torch.zeros(1)})),
        ("made with epochs None", lambda s: s.update(settings=[1])),
        ("made with epochs a list", lambda s: s["settings"].update(epochs=laughs())),
        ("made with epochs x{40}... .now 3", lambda s: s["settings"].update(epochs="x" * 10**6)),
    ],
)
def test_a_checkpoint_with_a_part_that_is_not_of_this_run_is_refused_before_its_use(checkpoints, alone, part, change):
    """Fused Adam overwrites memory with a state of another shape."""
    before = bounded_run(alone)
    take_steps(before, 3)
    before.position.samples = 48
    path = before.save(checkpoints)
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, path)
    after = bounded_run(alone)
    with pytest.raises(TrainingError) as fault:
        after.resume(checkpoints)
    text = str(fault.value)
    assert text.startswith(f"{path}: ") and "--restart" in text and len(text) < 600
    assert re.search(part.rstrip("$") + (r"\)" if part.endswith("$") else ""), text), text
    assert after.position == Position()


def bounded_run(world):
    """A small run of 3 epochs with 10 steps each, of 160 samples."""
    run = small_run(world)
    run.extent = Extent(3, 10, 160)
    return run


def test_a_state_gets_memory_of_its_own_with_the_strides_of_the_run(checkpoints, alone):
    before, after = small_run(alone), small_run(alone)
    take_steps(before, 1)
    path = before.save(checkpoints)
    state = torch.load(path, weights_only=True)
    first(state)["exp_avg"] = torch.ones(1).expand(8, 4)
    first(state)["exp_avg_sq"] = first(state)["exp_avg"]
    torch.save(state, path)
    after.resume(checkpoints)
    loaded = after.optimizer.state[after.network[0].weight]
    assert loaded["exp_avg"].stride() == loaded["exp_avg_sq"].stride() == (4, 1)
    assert loaded["exp_avg"].data_ptr() != loaded["exp_avg_sq"].data_ptr()
    assert torch.equal(loaded["exp_avg"], torch.ones(8, 4))
    take_steps(after, 1)


def test_a_random_state_that_is_none_is_one_sentence(checkpoints, alone):
    run = small_run(alone)
    path = run.save(checkpoints)
    state = torch.load(path, weights_only=True)
    state["random"][0]["cpu"].fill_(255)
    torch.save(state, path)
    with pytest.raises(TrainingError, match=f"^{path}: the random state is none .Invalid mt19937 state"):
        small_run(alone).resume(checkpoints)


def test_other_data_of_the_same_size_is_refused_and_a_checkpoint_without_a_fingerprint_is_taken(
    checkpoints, alone, capsys
):
    run = small_run(alone)
    run.save(checkpoints)  # as earlier versions did
    run.data = "one"
    run.resume(checkpoints)
    assert "holds no fingerprint of the data; make sure" in capsys.readouterr().out
    run.save(checkpoints)
    run.resume(checkpoints)
    assert capsys.readouterr().out == ""
    run.data = "another"
    with pytest.raises(TrainingError, match="step-000000.pt: made with other data; name the same data with --data"):
        run.resume(checkpoints)


def repacked(path, change, compression=zipfile.ZIP_STORED):
    """Pack a checkpoint anew, with ``change`` of its pickle."""
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as old, zipfile.ZipFile(path, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, change(old.read(name)) if name.endswith("data.pkl") else old.read(name))


@pytest.mark.parametrize(
    "pickled",
    [
        b"\x80\x02}X\x01\0\0\0xcbuiltins\nbytearray\n\x8a\x05\0\0\0\0\x02\x85Rs.",  # 8 GiB of it
        b"\x80\x02" + b"]" * 5_000_001 + b".",
    ],
)
def test_what_takes_more_memory_than_its_bytes_is_refused(checkpoints, monkeypatch, pickled):
    path = checkpoints.save(STATE, epoch=1, step=0)
    repacked(path, lambda _: pickled)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("torch.load was called"))
    with pytest.raises(TrainingError, match=f"^{path}: refused, and nothing in it was run: it holds more than "):
        checkpoints.latest()


def test_a_compressed_checkpoint_is_damaged_before_it_is_expanded(checkpoints, monkeypatch, capsys):
    checkpoints.save({"epoch": 1}, epoch=1, step=0)
    path = checkpoints.save(STATE, epoch=2, step=0)
    repacked(path, lambda pickled: pickled, zipfile.ZIP_DEFLATED)
    assert checkpoints.latest()["epoch"] == 1
    assert "damaged (its parts are compressed); going back" in capsys.readouterr().out


def test_a_file_that_is_larger_than_a_checkpoint_of_the_run_is_not_read(checkpoints, alone):
    path = checkpoints.directory / "epoch-0001-step-000000.pt"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(TrainingError, match=f"^{path}: 1099511627776 bytes, though no more than .* are exp"):
        small_run(alone).resume(checkpoints)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(checkpoints, make):
    path = checkpoints.directory / "epoch-0001-step-000000.pt"
    make(path)
    with pytest.raises(TrainingError, match=f"^{path}: not a regular file. Remove it"):
        checkpoints.latest()


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_weights_are_loaded_with_and_without_the_wrappers_prefix(alone, prefix, wrapped):
    source, target = nn.Linear(3, 2), nn.Linear(3, 2)
    load_model(
        DistributedDataParallel(target) if wrapped else target,
        {prefix + name: weight for name, weight in source.state_dict().items()},
    )
    assert torch.equal(target.weight, source.weight) and torch.equal(target.bias, source.bias)


def test_weights_of_another_network_are_refused_in_one_sentence():
    with pytest.raises(TrainingError, match=r"^the weights are of another network \(Missing key.*bias.*\); start.*$"):
        load_model(nn.Linear(3, 2), {"weight": torch.ones(2, 3)})
    with pytest.raises(TrainingError, match=r"^the weights are of another network \(size mismatch for weight.*"):
        load_model(nn.Linear(3, 2), nn.Linear(4, 2).state_dict())


def test_the_step_of_adam_may_have_another_shape_and_nothing_else(checkpoints, alone):
    before, after = small_run(alone), small_run(alone)
    take_steps(before, 1)
    path = before.save(checkpoints)
    state = torch.load(path, weights_only=True)
    first(state)["step"] = first(state)["step"].reshape(1)
    torch.save(state, path)
    after.resume(checkpoints)
    step = after.optimizer.state[after.network[0].weight]["step"]
    assert step.shape == () and step == 1
    take_steps(after, 1)
    first(state)["exp_avg"] = first(state)["exp_avg"].reshape(-1)
    torch.save(state, path)
    with pytest.raises(TrainingError, match="exp_avg"):
        small_run(alone).resume(checkpoints)


def sparse_run(world, kind):
    """A run of an optimizer that takes no step with zeros as gradients, and a function that takes one."""
    torch.manual_seed(1)
    network = nn.Embedding(6, 2, sparse=True) if kind == "SparseAdam" else nn.Linear(2, 2)
    optimizer = getattr(torch.optim, kind)(network.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    data = torch.arange(4) if kind == "SparseAdam" else torch.ones(3, 2)

    def closure():
        optimizer.zero_grad()
        loss = network(data).square().sum()
        loss.backward()
        return loss

    return Run(network, optimizer, schedule, {"epochs": 3}, world), lambda: optimizer.step(closure)


@pytest.mark.parametrize("kind", ["LBFGS", "SparseAdam"])
def test_optimizers_that_take_no_step_without_data_are_resumed(checkpoints, alone, kind):
    before, step = sparse_run(alone, kind)
    step()
    path = before.save(checkpoints)
    after, step_again = sparse_run(alone, kind)
    assert after.resume(checkpoints) == str(path)
    step()
    step_again()
    for name, weight in before.network.state_dict().items():
        assert torch.equal(after.network.state_dict()[name], weight)
    state = torch.load(path, weights_only=True)
    name = "d" if kind == "LBFGS" else "exp_avg"
    first(state)[name] = torch.zeros(5)
    torch.save(state, path)
    with pytest.raises(TrainingError, match=rf"does not fit this run .optimizer.state..0..{name}. is a tensor"):
        sparse_run(alone, kind)[0].resume(checkpoints)
