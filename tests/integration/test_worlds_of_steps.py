"""The world in steps of Slurm that are unlike others, by --dry-run: nothing but the runscripts and Slurm is needed."""

import os
import re
import sys
from pathlib import Path

import pytest
from optional_packages import need

from testbed.packages import find_optional

sys.path.insert(0, str(Path(__file__).parents[2] / "runscripts"))
from pytorch_launch.launchers import inherited  # noqa: E402
from pytorch_launch.ports import free_port  # noqa: E402

pytestmark = pytest.mark.testbed

RUNSCRIPTS = Path(__file__).parents[2] / "runscripts"
#: Prints the world of a task: rank, size, local rank, its size, the node's number, the node, MASTER_ADDR, get-master.
SHOW = """#!/bin/bash
export PATH=%s:$PATH
found=$(conda-python-distributed --dry-run) || exit
eval "$found"
world="$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE"
printf '%%s\\n' "$world $GROUP_RANK $SLURMD_NODENAME $MASTER_ADDR $(get-master)"
"""


@pytest.fixture
def show(work):
    """The path of a command that prints the world of its task in one line."""
    command = work / "show"
    command.write_text(SHOW % RUNSCRIPTS)
    command.chmod(0o755)
    return command


A = "nid001001"
B = "nid001002"
C = "nid001003"
TWO = f"salloc --quiet -w {C} -N1 -n1 : -w {A} -N1 "
IN_ONE_JOB = f"salloc --quiet -w {A},{B},{C} -N3 --ntasks-per-node=2 srun -w {C} -N1 -n1"


@pytest.mark.parametrize(
    ("line", "world"),
    [
        (f"{TWO} -n1 srun --het-group=0,1 {{show}}", [f"0/2 0/1 0 {C} {C} {C}", f"1/2 0/1 1 {A} {C} {C}"]),
        (f"{TWO} -n2 srun --het-group=1 {{show}}", [f"0/2 0/2 0 {A} {A} {A}", f"1/2 1/2 0 {A} {A} {A}"]),
        (
            f"{IN_ONE_JOB} {{show}} : -w {A} -N1 -n2 {{show}}",
            [f"0/3 0/1 0 {C} {C} {C}", f"1/3 0/2 1 {A} {C} {C}", f"2/3 1/2 1 {A} {C} {C}"],
        ),
    ],
)
def test_ranks_of_a_heterogeneous_step_meet_at_rank_0(testbed, show, line, world):
    assert sorted(testbed.run(line.format(show=show)).splitlines()) == world


def test_a_component_may_have_an_uneven_number_of_tasks_on_its_nodes(testbed, show):
    line = f"salloc --quiet -w {C} -N1 -n1 : -w {A},{B} -N2 -n3 srun --het-group=0,1 {show}"
    ranks = [rank.split() for rank in sorted(testbed.run(line).splitlines())]
    assert [rank[0] for rank in ranks] == ["0/4", "1/4", "2/4", "3/4"]
    # Slurm places two tasks on the node with more free cores
    assert [rank[1] for rank in ranks] in (["0/1", "0/2", "1/2", "0/1"], ["0/1", "0/1", "0/2", "1/2"])
    assert [rank[2:4] for rank in (ranks[0], ranks[1], ranks[3])] == [["0", C], ["1", A], ["2", B]]
    assert all(rank[4:] == [C, C] for rank in ranks)


def test_where_slurm_does_not_report_the_node_of_rank_0_every_rank_ends_with_the_remedy(testbed, show):
    line = f"{IN_ONE_JOB} {show} : -w {A},{B} -N2 -n2 {show}"
    done = testbed.run_unchecked(line)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "does not report the node of rank 0. Export MASTER_ADDR=<its host> before srun" in done.stderr
    assert len(testbed.run(f"export MASTER_ADDR={C}\n{line.replace(str(show), 'true')}").splitlines()) == 0


def test_a_job_of_components_knows_its_first_node_without_a_step(testbed):
    assert testbed.run(f"{TWO} -n1 {RUNSCRIPTS}/get-master") == f"{C}\n"


SUBMIT = "sbatch --quiet --wait --output={work}/out --error={work}/err {options} {work}/script"


@pytest.mark.parametrize(
    ("launcher", "named"),
    [
        ("srun -N2 -n2 {work}/one_submits", "SLURM_STEP_NUM_TASKS=2"),
        ("srun -N2 -n2 {runscripts}/conda-python-distributed {work}/one_submits.py", "PYTORCH_LAUNCH_ID="),
        ("salloc --quiet -N2 -n2 {mpirun} -np 2 {work}/one_submits", "OMPI_COMM_WORLD_RANK=1"),
    ],
)
def test_a_job_that_a_rank_submits_is_not_a_part_of_its_world(testbed, show, work, launcher, named):
    """The batch script is one process and says so; its steps end with an error if they inherited another launch."""
    mpirun = need("openmpi-bin") if "{mpirun}" in launcher else ""
    submit = SUBMIT.format(work=work, options="-N2 -n2")
    (work / "script").write_text(f"#!/bin/bash\nunset ${{!SLURM_CPU_BIND*}}\n{show}\nsrun {show}\necho status $? >&2\n")
    (work / "one_submits").write_text(f'#!/bin/bash\n[ "${{OMPI_COMM_WORLD_RANK:-$SLURM_PROCID}}" = 0 ] || {submit}\n')
    (work / "one_submits").chmod(0o755)
    (work / "one_submits.py").write_text(f"import os\nos.environ['RANK'] == '0' or os.system({submit!r})\n")
    testbed.run(launcher.format(work=work, runscripts=RUNSCRIPTS, mpirun=mpirun))
    out, err = ((work / name).read_text().splitlines() for name in ("out", "err"))
    assert out[0].startswith("0/1 0/1 0 ")
    assert named in err[0]
    assert "is of a launch around this job: starting one process" in err[0]
    if named.startswith("SLURM"):
        assert sorted(line[:4] for line in out[1:]) == ["0/2 ", "1/2 "]
        assert err[1:] == ["status 0"]
    else:
        assert len(out) == 1
        messages = [line for line in err[1:] if line.startswith("conda-python-distributed: ")]
        assert messages, err
        assert all(named in line and "is of another launch than Slurm step" in line for line in messages), err
        assert err[-1] == "status 2"


def test_a_shell_that_alone_is_left_of_its_step_starts_no_rank(testbed, show, work):
    """`srun --pty` connects task 0 alone to the terminal: the shells of the others have ended."""
    mpirun = find_optional("openmpi-bin") or "echo"
    (work / "typed").write_text(
        f"exec </dev/null\n{show}; echo status $?\nsrun --overlap -N1 -n2 {show}\n"
        f"{mpirun} --oversubscribe -np 2 {show}\nexit 0\n"
    )
    line = f"srun -N1 -n4 --overcommit -w {A} --pty bash --norc"
    terminal = f"{sys.executable} -c 'import pty, sys; pty.spawn(sys.argv[1:])' {line}"
    shown = testbed.run_unchecked(f"{terminal} <<<'. {work}/typed; exit'").stdout
    lines = shown.replace("\r", "").splitlines()
    assert any("is one of 4 tasks of Slurm step" in text and "srun --overlap -N1 -n4" in text for text in lines), lines
    assert "status 2" in lines
    assert sum(text.startswith(("0/2 0/2 0 nid001001 ", "1/2 1/2 0 nid001001 ")) for text in lines) == (
        4 if mpirun != "echo" else 2
    ), lines


@pytest.mark.parametrize(("package", "one_on_each"), [("openmpi-bin", "--map-by ppr:1:node"), ("mpich", "-ppn 1")])
def test_mpirun_in_a_shell_of_several_nodes_overlaps_its_step(testbed, show, work, package, one_on_each):
    """Without SLURM_OVERLAP=1, mpirun's own step waits for the shell to end (docs/launch.md)."""
    (work / "typed").write_text(f"SLURM_OVERLAP=1 {need(package)} {one_on_each} -np 2 {show} </dev/null\nexit 0\n")
    line = f"srun -N2 -n2 -w {A},{B} --pty bash --norc -i {work}/typed"
    shown = testbed.run_unchecked(f"{sys.executable} -c 'import pty, sys; pty.spawn(sys.argv[1:])' {line}").stdout
    assert sorted(re.findall(r"[01]/2 0/1 [01] nid", shown)) == ["0/2 0/1 0 nid", "1/2 0/1 1 nid"], shown


def test_a_job_that_is_submitted_as_the_remedy_says_has_its_own_world_and_variables(testbed, show, work):
    submit = SUBMIT.format(work=work, options="--export=NONE -N2 -n2")
    line = "export SLURM_EXPORT_ENV=ALL; unset ${!SLURM_CPU_BIND*}"
    steps = f"export PATH={RUNSCRIPTS}:$PATH\nsrun {show}\n"
    (work / "script").write_text(f"#!/bin/bash\n{line}\n{steps}")
    assert line in inherited.SUBMIT
    testbed.run(f"srun -N2 -n2 bash -c '[ $SLURM_PROCID = 0 ] || {submit}'")
    assert (work / "err").read_text() == ""
    assert sorted(line[:4] for line in (work / "out").read_text().splitlines()) == ["0/2 ", "1/2 "]


def test_a_task_may_start_several_programs_and_a_server_has_a_step_of_its_own(testbed, show):
    twice = f"srun -n1 -w {A} bash -c '{show} & {show} & wait'"
    assert testbed.run(twice).splitlines() == [f"0/1 0/1 0 {A} {A} {A}"] * 2
    port = f'eval "$({RUNSCRIPTS}/conda-python-distributed --dry-run)"; echo $MASTER_PORT'
    ports = testbed.run(f"srun -n1 bash -c '({port}) & ({port}) & wait'").split()
    assert len(set(ports)) == 2
    server = f"salloc --quiet -N2 -n3 bash -c 'srun --overlap -n1 sleep 1 & srun --overlap -N2 -n2 {show}; wait'"
    assert sorted(line[:4] for line in testbed.run(server).splitlines()) == ["0/2 ", "1/2 "]


def test_the_lines_of_the_readme_give_ranks_what_the_launcher_does(testbed, work):
    text = (RUNSCRIPTS / "README.md").read_text().split("```bash\n")[1].split("```")[0]
    (work / "rank").write_text(text)
    (work / "rank").chmod(0o755)
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR"]
    show = f"import os; os.write(1, (' '.join(os.environ[name] for name in {names}) + chr(10)).encode())"
    (work / "show.py").write_text(show)
    launchers = (f"{work}/rank", f"{RUNSCRIPTS}/conda-python-distributed")
    job = f"PATH={Path(sys.executable).parent}:$PATH salloc --quiet -N2 -n3 -w {A},{B} srun"
    by_hand, by_launcher = (sorted(testbed.run(f"{job} {each} {work}/show.py").splitlines()) for each in launchers)
    assert by_hand == by_launcher
    assert len(by_hand) == 3


#: Two ranks tell each other the launch that they are of.
MEETING = """
import os, socket, sys, time
launch, port, end = sys.argv[1], int(os.environ["MASTER_PORT"]), time.monotonic() + 8
time.sleep(1)
while True:
    try:
        if os.environ["RANK"] == "0":
            with socket.create_server(("", port)) as server:
                server.settimeout(8)
                other = server.accept()[0]
        else:
            other = socket.create_connection(("127.0.0.1", port), 8)
        break
    except ConnectionRefusedError:
        if time.monotonic() > end:
            raise
        time.sleep(0.1)
other.sendall(launch.encode())
sys.stdout.write(f"{launch} met {other.recv(1).decode()}\n")
"""
#: Two launches of one user with one exported port, of which one has a late rank.
PAIR = """export MASTER_PORT={port} SLURM_KILL_BAD_EXIT={kill}
for launch in a b; do
    ({launcher} bash -c '
        rank=${{OMPI_COMM_WORLD_RANK:-$SLURM_PROCID}}
        [ "$0 $rank" != "{late}" ] || sleep 3
        exec {runscripts}/conda-python-distributed {work}/meet.py $0' $launch; echo "$launch status $?") &
done
wait"""


@pytest.mark.thorough
@pytest.mark.parametrize("launcher", ["srun -N2 -n2 -w nid001001,nid001002", "openmpi-bin"])
def test_two_launches_with_one_port_never_meet_and_succeed(testbed, work, launcher):
    (work / "meet.py").write_text(MEETING)
    if launcher == "openmpi-bin":
        launcher = f"{need(launcher)} --oversubscribe -np 2"
    for number in range(20):
        port = free_port(os.getpid() + number)
        values = {"launcher": launcher, "runscripts": RUNSCRIPTS, "work": work, "port": port}
        late = f"{'ab'[number % 2]} {number // 2 % 2}"
        output = testbed.run_unchecked(PAIR.format(late=late, kill=number % 2, **values)).stdout
        statuses = dict(re.findall(r"^([ab]) status (\d+)$", output, re.MULTILINE))
        assert sorted(statuses) == ["a", "b"], output
        succeeded = [launch for launch in statuses if statuses[launch] == "0"]
        assert len(succeeded) <= 1, output
        for launch in succeeded:
            assert re.findall(rf"^{launch} met (.)$", output, re.MULTILINE) == [launch] * 2, output


@pytest.mark.parametrize(
    ("package", "line"),
    [
        (None, "srun -N2 --ntasks-per-node=1 {command}"),  # in this allocation, Slurm ignores the option
        ("openmpi-bin", "{launcher} -np 4 {command}"),
        ("mpich", "{launcher} -n 4 -ppn 2 {command}"),
    ],
)
def test_the_hint_for_several_agents_on_a_node_starts_one_on_each(testbed, work, package, line):
    launcher = need(package) if package else "srun"
    (work / "python").write_text('#!/bin/sh\necho "agent $4"\n')
    (work / "python").chmod(0o755)
    job = "salloc --quiet -N2 --ntasks-per-node=2 "
    settings = f"export PATH={work}:{RUNSCRIPTS}:$PATH\n"
    done = testbed.run_unchecked(
        settings + job + line.format(launcher=launcher, command="torchrun-distributed train.py")
    )
    assert done.returncode != 0
    hint = re.search(r"Start one task per node: (\S+)( .* torchrun-distributed)", done.stderr)
    command = (launcher if package else hint[1]) + hint[2]
    assert testbed.run(f"{settings}{job}{command} train.py").split() == ["agent", "--nproc-per-node=1"] * 2


def test_the_hint_for_a_rank_0_on_another_node_makes_the_ranks_meet(testbed, show, work):
    line = "salloc --quiet -w {A},{B} -N2 -n2 {mpirun} {more} -np 1 --host {B} {show} : "
    line += "{more} -np 1 --host {A} {show}"
    values = {"A": A, "B": B, "mpirun": need("openmpi-bin"), "show": show}
    done = testbed.run_unchecked(line.format(more="", **values))
    assert done.returncode != 0
    hint = re.search(rf"Export (MASTER_ADDR={B}) with mpirun (-x)", done.stderr)
    assert hint, done.stderr
    worlds = testbed.run(line.format(more=f"{hint[2]} {hint[1]}", **values)).splitlines()
    assert len(worlds) == 2
