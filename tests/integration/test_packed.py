"""Packed venvs: who shares a mount, and what is left when a step ends; the installations have no torch."""

import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

import pytest
from small_installation import PROBE, SmallInstallation
from waiting import left_after

pytestmark = [pytest.mark.testbed, pytest.mark.early]

#: Prints, then waits until a file exists.
WAITING = (
    PROBE
    + """
import time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""
)
#: A rank that ignores SIGTERM.
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITING


@pytest.fixture(scope="module")
def installation(testbed):
    """A packed installation that every user can read."""
    if not shutil.which("mksquashfs") or testbed.obstacle:
        pytest.skip("no squashfs-tools, or no user namespaces with FUSE")
    is_open = all(path.stat().st_mode & stat.S_IXOTH for path in (testbed.layout.root, *testbed.layout.root.parents))
    with tempfile.TemporaryDirectory(prefix="packed-", dir=testbed.layout.root if is_open else None) as directory:
        root = Path(directory)
        root.chmod(0o755)
        yield SmallInstallation(root, python="/usr/bin/python3")  # others may be in a home directory


@pytest.fixture
def without_squashfuse(work):
    """A directory with the host's commands but squashfuse."""
    (work / "bin").mkdir()
    for directory in ("/bin", "/usr/sbin", "/usr/bin"):
        for path in Path(directory).iterdir():
            if not path.name.startswith(("squashfuse", "apptainer")) and not (work / "bin" / path.name).exists():
                (work / "bin" / path.name).symlink_to(path)
    return work / "bin"


@pytest.fixture
def shell(testbed, installation, work):
    """A function that runs a script with the installation loaded; its temporary files are in `work`/temporary."""
    for name, text in (("probe.py", PROBE), ("waiting.py", WAITING), ("stubborn.py", STUBBORN)):
        (work / name).write_text(text)
    (work / "temporary").mkdir()

    def run(script):
        script = f"{installation.load}export TMPDIR={work}/temporary\n{script}"
        return testbed.run_unchecked(script, cwd=work)

    return run


def left(installation, work):
    """Files in the temporary directory, and processes that a script of this test has started or that have the mount."""
    yield from (str(path) for path in (work / "temporary").rglob("*") if not path.is_dir())
    for process in Path("/proc").glob("[0-9]*"):
        try:
            of_test = f"TMPDIR={work}/temporary\0".encode() in (process / "environ").read_bytes()
            if of_test or str(installation.root) in (process / "mounts").read_text():
                yield (process / "cmdline").read_text()
        except OSError:  # it has ended
            continue


def lines(done):
    """The words of each line that the ranks print."""
    return [line.split() for line in done.stdout.splitlines() if re.match(r"(\d+|None) ", line)]


#: Waits in a script until the ranks of `count` lines have printed.
RANKS_RUN = 'until [ "$(cat out* 2>/dev/null | grep -cE "^([0-9]|None) ")" = {count} ]; do sleep 0.05; done\n'


@pytest.mark.parametrize(
    ("program", "end"),
    [
        ("waiting.py", "touch go; wait"),
        ("waiting.py", "kill -KILL $(pgrep -f '^python waiting.py go'); wait"),
        ("waiting.py", "kill -TERM $(pgrep -f '^python waiting.py go'); wait"),
        ("waiting.py", "scancel --name={name}; wait"),
        ("stubborn.py", "scancel --name={name}; wait"),
        ("waiting.py", "scancel --signal=KILL --name={name}; wait"),
    ],
    ids=["end", "kill", "term", "scancel", "scancel-ignored", "scancel-kill"],
)
def test_a_step_leaves_no_process_no_mount_and_no_file(shell, installation, work, program, end):
    name = f"packed-{os.getpid()}"
    program = f"{work}/{program}"
    done = shell(f"""srun --job-name={name} -N2 -n4 -o out.%t conda-python-distributed {program} go &
{RANKS_RUN.format(count=4)}{end.replace("waiting.py", program).format(name=name)}
cat out.*""")
    assert [line[1] for line in lines(done)] == ["True"] * 4, done.stderr
    assert left_after(60, lambda: left(installation, work)) == []


def test_the_ranks_of_a_node_share_one_mount_at_the_installations_own_path(shell, installation):
    done = shell("PYTORCH_LAUNCH_VERBOSE=1 srun -N2 -n16 --overcommit conda-python-distributed probe.py")
    ranks = {(int(line[0]), line[1], line[2]) for line in lines(done)}
    assert ranks == {(rank, "True", str(installation.file)) for rank in range(16)}
    assert len({line[-1] for line in lines(done)}) == 2, done.stderr
    assert len(re.findall("packed venv .* mounted at", done.stderr)) == 2


def test_other_commands_of_the_module_run_from_the_packed_file_too(shell, installation):
    done = shell("""python probe.py; conda-python-simple probe.py; bash -c 'source <(ddp-env) && python probe.py'
PYTORCH_LAUNCH_PACKED=0 python probe.py
PYTORCH_LAUNCH_PACKED=no python probe.py""")
    assert [line[1] for line in lines(done)] == ["True"] * 3 + ["False"] * 2
    (message,) = re.findall("packed venv not mounted: .*", done.stderr)
    assert message.startswith("packed venv not mounted: PYTORCH_LAUNCH_PACKED=no. Using the unpacked files in ")


def test_ranks_that_start_later_share_the_mount_while_one_of_its_processes_lives(shell):
    """Also when the process that mounted it has ended."""
    done = shell(f"""cat > ranks.sh <<'END'
conda-python-distributed waiting.py go1 > out1 & {RANKS_RUN.format(count=1)}
conda-python-distributed waiting.py go2 > out2 & {RANKS_RUN.format(count=2)}
touch go1; wait %1
conda-python-distributed probe.py
touch go2; wait
conda-python-distributed probe.py
cat out1 out2
END
srun -N1 -n1 bash ranks.sh""")
    third, last, first, second = lines(done)
    assert first[1:] == second[1:] == third[1:], done.stderr
    assert last[1] == "True"  # mounted again; the kernel may give the new namespace the number of the old one


def test_a_program_that_leaves_the_namespace_of_the_mount_is_not_joined(shell):
    done = shell(f"""cat > ranks.sh <<'END'
conda-python-distributed waiting.py go > out1 &
{RANKS_RUN.format(count=1)}
conda-python-distributed -c 'import os
os.execvp("unshare", ["unshare", "--user", "--mount", "python", "waiting.py", "go"])' > out2 &
{RANKS_RUN.format(count=2)}
conda-python-distributed probe.py
touch go; wait
END
srun -N1 -n1 bash ranks.sh; cat out1 out2""")
    third, first, second = lines(done)
    assert [first[1], second[1], third[1]] == ["True"] * 3, done.stderr
    assert first[-1] == third[-1] != second[-1]


def test_steps_at_once_have_mounts_of_their_own(shell):
    done = shell(f"""cat > steps.sh <<'END'
srun --overlap -N1 -n2 -o out1.%t conda-python-distributed waiting.py go &
srun --overlap -N1 -n2 -o out2.%t conda-python-distributed waiting.py go &
{RANKS_RUN.format(count=4)}touch go; wait
cat out*
END
salloc --quiet -N1 -n2 bash steps.sh""")
    one, two, three, four = lines(done)
    assert one[1:] == two[1:] and three[1:] == four[1:] and one[1] == three[1] == "True", done.stderr
    assert one[-1] != three[-1]


def test_a_mount_whose_server_was_killed_is_not_shared(shell):
    done = shell(f"""cat > ranks.sh <<'END'
conda-python-distributed waiting.py go > out1 & {RANKS_RUN.format(count=1)}
for pid in $(pgrep squashfuse); do
    ! grep -qzx SLURM_JOB_ID=$SLURM_JOB_ID /proc/$pid/environ || kill -KILL $pid
done
conda-python-distributed probe.py
touch go; wait
END
srun -N1 -n1 bash ranks.sh; cat out1""")
    second, first = lines(done)
    assert (first[1], second[1]) == ("True", "True"), done.stderr
    assert first[-1] != second[-1]


def test_a_mount_that_hangs_is_given_up_after_a_limit(shell, installation, without_squashfuse):
    (without_squashfuse / "squashfuse_ll").write_text("#!/bin/bash\nexec sleep 8\n")
    (without_squashfuse / "squashfuse_ll").chmod(0o755)
    program = installation.root / "runscripts" / "pytorch_packed.py"
    text = program.read_text()
    try:
        program.write_text(text.replace("MOUNT_SECONDS = 60", "MOUNT_SECONDS = 1"))
        run = "python -c 'import sys, os; print(os.path.exists(sys.prefix + \"/../.packed\"))'"
        done = shell(
            f"PATH={installation.root}/bin:{installation.root}/venv/bin:{without_squashfuse}; {run} & {run}; wait"
        )
    finally:
        program.write_text(text)
    assert done.stdout.split() in (["False"] * 2, ["FalseFalse"])  # of two processes
    assert done.stderr.count("python: packed venv not mounted: no answer within 1 s. Using the unpacked files in") == 2


@pytest.mark.parametrize(
    ("prevent", "reason"),
    [
        ("", "squashfuse not found on PATH or in Apptainer"),
        ("mount -t tmpfs none /proc", "No such file or directory"),
        ("mount --bind /dev/null /dev/fuse", "mount: .*wrong fs type"),
        ("export PYTORCH_PACKED=/absent/venv.squashfs", "squashfuse_ll cannot read /absent/venv.squashfs"),
        ("PYTORCH_PACKED=$CONTAINERROOT/venv/pyvenv.cfg", "squashfuse_ll cannot read"),
        (
            "(echo exit 1; cat $(type -P unshare)) >unshare; chmod +x unshare; PATH=$PWD:$PATH",
            "no answer",
        ),  # as of RHEL 8
    ],
    ids=["squashfuse", "proc", "fuse", "file", "not-squashfs", "unshare"],
)
def test_what_cannot_be_mounted_is_used_unpacked(shell, installation, without_squashfuse, prevent, reason):
    path = f"{installation.root}/bin:{installation.root}/venv/bin:"
    path += "$PATH" if prevent else str(without_squashfuse)
    done = shell(f"""unshare --mount bash -c '{prevent or "true"}
PATH={path} exec python -c "import os, sys; print(os.path.exists(sys.prefix + \\"/../.packed\\"))"'""")
    assert done.stdout == "False\n"
    message = f"python: packed venv not mounted: .*{reason}.*. Using the unpacked files in {installation.root}"
    assert re.fullmatch(message, done.stderr.strip())


#: Starts two processes of a user in one step while another user attacks, so many times; prints how long it takes.
UNDER_ATTACK = """set -e
[ -e fuse ] || { mknod fuse c 10 229 && chmod 666 fuse; }
mount --bind fuse /dev/fuse
as_user() { local id=$1; shift; exec setpriv --reuid=$id --regid=$id --clear-groups --inh-caps=-all "$@"; }
export SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURMD_NODENAME=nid001001
trap 'kill $attacker 2>/dev/null || :' EXIT
for ((i = 0; i <= $1; i++)); do
    if [ $i = 1 ]; then # the first time is without an attack
        (as_user 65532 python3 attacker.py 65533 > attack) & attacker=$!
        until grep -qs ready attack; do kill -0 $attacker || exit 3; sleep 0.01; done
    fi
    start=${EPOCHREALTIME/./}
    (export SLURM_LOCALID=0; as_user 65533 timeout 300 python probe.py) & first=$!
    (export SLURM_LOCALID=1; as_user 65533 timeout 300 python probe.py) & wait $first $! || echo "failed: $?"
    echo took $(((${EPOCHREALTIME/./} - start) / 1000)) ms
done
kill $attacker; wait $attacker || true; grep -v ready attack || true
"""


@pytest.mark.parametrize("count", [3, pytest.param(50, marks=pytest.mark.thorough)])
def test_another_user_can_neither_delay_nor_enter_a_mount(shell, installation, count):
    with tempfile.TemporaryDirectory(dir=installation.root.parent) as directory:
        place = Path(directory)
        place.chmod(0o755)
        (place / "under_attack.sh").write_text(UNDER_ATTACK)
        for name, text in (("attacker.py", Path(__file__).with_name("attacker.py").read_text()), ("probe.py", PROBE)):
            (place / name).write_text(text)
            (place / name).chmod(0o644)
        done = shell(f"cd {place} && unshare --mount bash under_attack.sh {count}")
        assert done.returncode != 3, f"the attacker has ended: {done.stderr}"
    if os.geteuid() != 0 or not any(line[1] == "True" for line in lines(done)):
        pytest.skip("only root can start processes of two users, who need /dev/fuse and a squashfuse they can read")
    times = [int(text) for text in re.findall(r"^took (\d+) ms$", done.stdout, re.MULTILINE)]
    assert len(times) == count + 1
    assert len(lines(done)) == 2 * len(times)
    assert len(done.stdout.splitlines()) == 3 * len(times), f"the attacker has entered: {done.stdout}"
    assert done.stderr == ""
    assert all(line[1:3] == ["True", str(installation.file)] for line in lines(done))
    assert sorted(times)[-2] < 5000 + 2 * times[0]  # one may be the machine's
