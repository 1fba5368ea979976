"""Metrics of a training, and a search on two nodes, with packages that a user has installed."""

import contextlib
import json
import re
import sqlite3
import tempfile
from collections import Counter

import pytest
from waiting import wait_for

from testbed.environments.python import install
from testbed.stand_ins.job_scripts import JOBS, submission

pytestmark = [pytest.mark.testbed, pytest.mark.early]

READ_EVENTS = """import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
print(json.dumps({tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}))
"""
READ_STUDY = """import json, optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
storage = JournalStorage(JournalFileBackend("study/study.journal"))
trials = optuna.load_study(study_name=None, storage=storage).trials
print(json.dumps([(trial.state.name, trial.user_attrs["directory"]) for trial in trials]))
"""
#: Replaces mnist_ddp.py with a training that ends when the test removes a file, and stops in the same way.
TRAINING = """import argparse, json, math, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
parser = argparse.ArgumentParser()
parser.add_argument("--modelpath", type=Path)
parser.add_argument("--lr", type=float)
options, _ = parser.parse_known_args()
trial = options.modelpath
hold = Path("hold-resumed" if (trial / "begun").exists() else "hold-new")
(trial / "begun").touch()
while hold.exists():
    time.sleep(0.1)
accuracy = 99 - abs(math.log10(options.lr) + 2)
Path(trial, "metrics.jsonl").write_text(json.dumps({"epoch": 1, "accuracy": accuracy}) + "\\n")
"""


@pytest.fixture(scope="module")
def packages(testbed, request):
    """A PYTHONUSERBASE with Optuna, and with what trainings report to for the tests of --thorough.

    Both modules have the same Python.
    """
    names = "optuna"
    if request.config.getoption("--thorough"):
        names += " tensorboard wandb mlflow-skinny alembic"  # mlflow's own list has pandas, which is not needed
    with tempfile.TemporaryDirectory(prefix="packages-", dir=testbed.layout.root) as directory:
        install(testbed.layout.test_venv, "--target", f"{directory}/lib/python3.11/site-packages", *names.split())
        yield directory


@pytest.fixture
def load(packages):
    """A function that returns lines that load a module, with these packages as the user's own."""

    def lines(module):
        return f"""export SINGULARITY_BIND={packages} APPTAINER_BIND={packages} WANDB_MODE=offline
module load {module}
export PYTHONUSERBASE={packages}"""

    return lines


@pytest.mark.thorough  # tests/unit/payload/test_metrics.py always writes and continues metrics
def test_a_resumed_training_continues_metrics_tensorboard_wandb_mlflow(testbed, container, venv, load, few_images):
    work = few_images
    start = """
srun -N{0} -n{0} conda-python-distributed -u $PAYLOAD/mnist_ddp.py --data . --epochs 2 --modelpath run \\
  --tensorboard --wandb demo --mlflow"""
    start = f"\nexport MLFLOW_TRACKING_URI=sqlite:///{work}/run/mlflow.db\nmkdir -p run{start}"
    testbed.run(load(container) + start.format(2), cwd=work)
    (last,) = (work / "run" / "checkpoints").glob("epoch-0002-*")
    last.unlink()
    assert "resuming after 1 epochs" in testbed.run(load(venv) + start.format(1), cwd=work)

    lines = [json.loads(line) for line in (work / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert [line["world_size"] for line in lines] == [2, 1]

    events = json.loads(testbed.run(f"{load(venv)}\npython - run/tensorboard <<'EOF'\n{READ_EVENTS}EOF", cwd=work))
    for name in ("loss", "accuracy", "images_per_second"):
        assert events[name] == [[line["epoch"], pytest.approx(line[name])] for line in lines]

    runs = sorted((work / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(runs) == 2 and all(b"images_per_second" in run.read_bytes() for run in runs)

    with contextlib.closing(sqlite3.connect(work / "run" / "mlflow.db")) as database:
        found = dict(database.execute("SELECT step, value FROM metrics WHERE key = 'loss' ORDER BY timestamp"))
        runs = database.execute("SELECT status FROM runs").fetchall()
    assert found == {line["epoch"]: pytest.approx(line["loss"]) for line in lines}
    assert runs == [("FINISHED",), ("FINISHED",)]


@pytest.mark.parametrize("training", [pytest.param("$PAYLOAD/mnist_ddp.py", marks=pytest.mark.thorough), "train.py"])
def test_a_search_over_two_nodes_survives_kills_and_a_cancelled_job(
    testbed, venv, packages, load, few_images, training
):
    work = few_images
    (work / "train.py").write_text(TRAINING)
    script = (JOBS / "slurm" / "search.job").read_text()
    (work / "search.job").write_text(script.replace('"$PAYLOAD/mnist_ddp.py"', training))
    output = work / "search.out"
    settings = f"{load(venv)}\nexport MNIST_ROOT=. PYTORCH_LAUNCH_VERBOSE=1\n"
    options = f"--output={output.name}"
    gone = r"^(trial-\d+): its process is gone; it will be resumed$"
    holds = [work / "hold-new", work / "hold-resumed"]
    for hold in holds:
        hold.touch()

    def found(pattern):
        return re.findall(pattern, output.read_text() if output.exists() else "", re.MULTILINE)

    def wait(pattern, count):
        wait_for(lambda: len(found(pattern)) >= count, report=lambda: f"no {count} of {pattern}: {output.read_text()}")

    job = testbed.run(f"{settings}sbatch --parsable {options} search.job", cwd=work).strip()
    wait(r"^trial-\d+: {", 2)
    steps = re.findall(r"^\d+\.\d+$", testbed.run(f"squeue --steps -h --job {job} --format %i"), re.MULTILINE)
    testbed.run_unchecked("".join(f"scancel --signal=KILL {step}\n" for step in steps))
    holds[0].unlink()
    wait(gone, 1)
    wait(rf"^{found(gone)[0]}: {{", 2)  # it has begun again
    testbed.run(f"scancel {job}; while squeue -h --job {job} 2>/dev/null | grep -q .; do sleep 0.2; done")
    holds[1].unlink()
    assert found(r"^trial-\d+: stopped; it will be resumed$")
    assert len(set(found(r"\bnid\d+\b"))) == 2

    result = testbed.run_unchecked(settings + submission("search.job", options), cwd=work)
    assert result.returncode == 0, result.stderr + output.read_text()
    study = json.loads(testbed.run(f"{load(venv)}\npython - <<'EOF'\n{READ_STUDY}EOF", cwd=work))
    states = Counter(state for state, _ in study)
    assert 12 <= states["COMPLETE"] <= 14, "two that start at the same moment may both be the last"
    assert set(states) == {"COMPLETE", "FAIL"}, "none is left RUNNING"
    complete = {directory for state, directory in study if state == "COMPLETE"}
    assert {directory for _, directory in study} == complete, "each that was interrupted went on"
    result = found(r"^(trial-\d+)  accuracy [\d.]+  {")
    assert len(result) == states["COMPLETE"]
    assert set(result) == complete


def test_a_search_whose_training_fails_names_the_log(testbed, venv, load, work):
    (work / "train.py").write_text("raise SystemExit('out of memory')")
    options = "--study study --trials 2 --one --space lr=0.001..0.1"
    search = f"conda-python-simple $PAYLOAD/search.py {options} -- train.py"
    result = testbed.run_unchecked(f"{load(venv)}\n{search}", cwd=work)
    assert result.returncode == 1
    assert result.stderr == "search.py: training failed: status 1, accuracy None. Read study/trial-0000/log\n"
    assert (work / "study" / "trial-0000" / "log").read_text() == "out of memory\n"
