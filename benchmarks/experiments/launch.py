"""From srun to the first line of Python: the launch script against plain assignments."""

import time
from functools import partial

from benchmarks.comparison import PROGRAMS, Comparison, compare
from benchmarks.experiments.steps import FOUR_RANKS, TWO_RANKS
from benchmarks.instructions import count_instructions
from benchmarks.step_variables import step_variables
from testbed.layout import NODES, TestbedError
from testbed.recipes import CONTAINER, VENV, module

#: A start of Python that no `.pth` file of the machine makes slower.
CLEAN_PYTHON = ("-I", "-S", "-c", "pass")


def launch(session, srun, ranks):
    """Both sides behind `srun` on the host, with the venv's Python."""
    env = session.environment(f"module load {module(VENV)}")
    return (
        lambda: until_python(session, env, [*srun, "conda-python-distributed"], ranks),
        lambda: until_python(session, env, [*srun, PROGRAMS / "exec-only"], ranks),
    )


def launch_in_image(session):
    """Both sides behind `singularity exec`, with the image's Python."""
    env = session.environment(f"module load {module(CONTAINER)}")
    inside = [*FOUR_RANKS, "singularity", "exec", "--bind", f"{PROGRAMS}/exec-only:/exec-only", env["SIF"]]
    return (
        lambda: until_python(session, env, [*inside, "conda-python-distributed"], 4),
        lambda: until_python(session, env, [*inside, "/exec-only"], 4),
    )


def until_python(session, env, launch, ranks):
    """Seconds from the start of `launch` to the first line of Python in the last of its `ranks`.

    The nodes of the testbed share one clock.
    """
    start = time.time()
    output = session.run([*launch, "-c", "import time; print(time.time())"], env)
    lines = output.split()
    if len(lines) != ranks:
        raise TestbedError(f"`{launch[-1]}` started {len(lines)} ranks of {ranks}.")
    return max(map(float, lines)) - start


def instructions(session):
    """Instructions of a start of Python behind the launch script, and of the same start alone."""
    nodes = NODES[:2]
    step = step_variables(node_list=",".join(nodes), nodes=nodes, tasks_per_node=2, rank=0)
    env = {**session.environment(f"module load {module(VENV)}"), **step, "TMPDIR": str(session.scratch)}
    return (
        lambda: count_instructions(session, env, ["conda-python-distributed", *CLEAN_PYTHON]),
        lambda: count_instructions(session, env, ["python", *CLEAN_PYTHON]),
    )


UNTIL_PYTHON = "until the last rank runs its first line of Python"
EXEC_ONLY = "the same with `exec-only`, a script of plain assignments, instead of `conda-python-distributed`"
LUMI = "LUMI's own script: 28 (4.2 s against 0.15 s)"

EXPERIMENTS = (
    compare(
        Comparison(
            name="launch-host",
            title="launch 4 ranks on 2 nodes, venv module, two ranks per core",
            a=f"`srun -N2 --ntasks-per-node=2 conda-python-distributed`, {UNTIL_PYTHON}",
            b=EXEC_ONLY,
            target=1.2,
            reference=LUMI,
        ),
        partial(launch, srun=FOUR_RANKS, ranks=4),
        rounds=21,
        seconds=0.5,
        recipes=(VENV,),
    ),
    compare(
        Comparison(
            name="launch-core",
            title="launch 2 ranks on 2 nodes, venv module, one rank per core",
            a=f"`srun -N2 --ntasks-per-node=1 --cpus-per-task=2 conda-python-distributed`, {UNTIL_PYTHON}",
            b=EXEC_ONLY,
            target=1.2,
        ),
        partial(launch, srun=TWO_RANKS, ranks=2),
        rounds=21,
        seconds=0.3,
        recipes=(VENV,),
    ),
    compare(
        Comparison(
            name="launch-image",
            title="launch 4 ranks on 2 nodes, inside the image",
            a=f"`srun -N2 --ntasks-per-node=2 singularity exec $SIF conda-python-distributed`, {UNTIL_PYTHON}",
            b=EXEC_ONLY,
            target=1.2,
            reference=LUMI,
        ),
        launch_in_image,
        rounds=15,
        seconds=1,
        recipes=(CONTAINER,),
        container=True,
    ),
    compare(
        Comparison(
            name="instructions",
            title="instructions of a start of Python with the launch script, against the same start without it",
            a="`conda-python-distributed -I -S -c pass` with the variables of a step, counted by valgrind: bash, the "
            "script's own Python, and yours",
            b="`python -I -S -c pass` of the venv, which reads no `.pth` file",
            target=3.0,
            unit="instructions",
        ),
        instructions,
        rounds=2,
        seconds=8,
        warm_up=False,
        recipes=(VENV,),
        packages=("valgrind",),
    ),
)
