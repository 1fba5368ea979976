"""The testbed itself: several run side by side, and `down` leaves nothing."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from waiting import wait_for

from testbed.cluster import slurm
from testbed.layout import Layout
from testbed.stand_ins.job_scripts import submission

pytestmark = pytest.mark.testbed


def verb(name, root):
    """Run one verb of the testbed at `root`; return the completed process."""
    tree = Path(__file__).resolve().parents[2]
    return subprocess.run(
        [sys.executable, tree / "testbed", name],
        env={**os.environ, "PYTORCH_TESTBED": str(root)},
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
    )


def processes_that_mention(text):
    """Return the command lines of all processes that contain `text`."""
    lines = subprocess.run(["pgrep", "-af", text], stdout=subprocess.PIPE, text=True, check=False).stdout.splitlines()
    return [line for line in lines if "pytest" not in line]


def installed_tools(layout):
    """Return the directories of EasyBuild and Apptainer, which a second testbed need not install."""
    return [directory for directory in (layout.eb_venv, layout.apptainer) if directory.exists()]


@pytest.fixture
def second(testbed):
    """A second testbed, which is taken down after the test, also after a failure."""
    # in a short path, which the sockets need; not below pytest's, whose name is in the command lines of tests
    second = Layout(Path(tempfile.mkdtemp(prefix="testbed-", dir="/tmp")))  # noqa: S108
    second.claim()
    # `up` installs them for an ordinary user below
    for directory in installed_tools(testbed.layout):
        (second.root / directory.name).symlink_to(directory)
    up = verb("up", second.root)
    yield second if up.returncode == 0 else pytest.fail(up.stderr)
    if second.root.exists():
        assert verb("down", second.root).returncode == 0


def test_a_second_testbed_runs_beside_the_first_and_down_leaves_no_process_and_no_file(testbed, second):
    root = second.root
    machine = Path("/etc/hosts").read_bytes()
    assert verb("status", root).returncode == 0
    names = "srun -N4 -n4 hostname | sort | tr '\\n' ' '"
    environment = {**os.environ, "SLURM_CONF": str(second.slurm_conf)}
    probe = subprocess.run(["bash", "-c", names], env=environment, capture_output=True, text=True, check=True)
    output = probe.stdout
    assert probe.stderr == ""
    assert output.split() == ["nid001001", "nid001002", "nid001003", "nid001004"]
    assert testbed.run(names) == output

    # not by srun, which would search for its controller for two minutes
    left = ["sbatch", "-N2", "--output=/dev/null", f"--wrap=touch {root}/runs; srun sleep 600"]
    subprocess.run(left, env=environment, capture_output=True, check=True)
    wait_for((root / "runs").exists)
    down = verb("down", root)
    assert down.returncode == 0, down.stderr
    assert [line.split(" ... ")[0] for line in down.stderr.splitlines()] == [
        "  stopping the Slurm cluster",
        f"  removing {root}",
    ]
    assert not root.exists()
    assert all(any(directory.iterdir()) for directory in installed_tools(testbed.layout))
    assert processes_that_mention(str(root)) == []
    assert Path("/etc/hosts").read_bytes() == machine
    slurm.wait_until_ready(testbed.layout)


def test_an_ordinary_user_gets_a_cluster_too(testbed, request):
    if os.geteuid() != 0:
        pytest.skip("these tests run as an ordinary user already")
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]
    python = ["/usr/bin/python3", "-c", "import ensurepip, venv"]
    if subprocess.run([*user, *python], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        pytest.skip("an ordinary user has no Python with venv here: /usr/bin/python3 lacks it")
    # EasyBuild, in other tests of this process, changes the default directory to one of root's
    root, tree = (Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp")) for prefix in ("testbed-user-", "checkout-"))  # noqa: S108
    os.chown(root, 65534, 65534)
    if not request.config.getoption("--thorough"):
        # as if EasyBuild were installed, which takes 10 CPU seconds
        Layout(root).claim()
        Layout(root).eb_venv.mkdir()
        shutil.copy(testbed.layout.eb_venv / "requirements.txt", Layout(root).eb_venv)
        for path in root.rglob("*"):
            os.chown(path, 65534, 65534)
    environment = {**os.environ, "PYTORCH_TESTBED": str(root), "HOME": str(root)}
    # a checkout that an ordinary user can read
    tree.chmod(0o755)
    for part in ("testbed", "runscripts", "easyconfigs"):
        shutil.copytree(Path(__file__).resolve().parents[2] / part, tree / part, symlinks=True)

    def as_user(*command):
        return subprocess.run([*user, *command], env=environment, cwd="/", capture_output=True, text=True, check=False)

    try:
        up = as_user("/usr/bin/python3", "-B", tree / "testbed", "up")
        assert up.returncode == 0, up.stderr
        environment["SLURM_CONF"] = str(Layout(root).slurm_conf)
        names = as_user("srun", "-N2", "-n2", "sh", "-c", "hostname; id -u; getent hosts nid001004")
        assert sorted(names.stdout.split()) == sorted(
            2 * ["127.0.0.1", "65534", "nid001004"] + ["nid001001", "nid001002"]
        )
    finally:
        down = as_user("/usr/bin/python3", "-B", tree / "testbed", "down")
        shutil.rmtree(tree)
    assert down.returncode == 0, down.stderr
    assert not root.exists()
    assert processes_that_mention(str(root)) == []


def test_a_directory_with_other_files_is_neither_used_nor_deleted(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    for name in ("up", "down"):
        result = verb(name, tmp_path)
        assert result.returncode == 1
        assert result.stderr.startswith("testbed: ")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_job_leaves_no_cache_in_tmp(testbed, venv):
    output = testbed.run(
        f"""module load {venv}
{submission("--wrap 'srun conda-python-distributed -c pass'", "-o /dev/null")}
srun bash -c 'conda-python-distributed -c "import os; print(os.environ[\\"TRITON_CACHE_DIR\\"])"'"""
    )
    job = Path(output.strip()).parent
    assert job.name.split("-")[-1].startswith("nid00100")
    wait_for(lambda: not job.exists())


def test_slurms_pmix_starts_ranks_on_two_nodes(testbed):
    """The nodes share /tmp: there, the second node of a step found the directory of the first."""
    if "pmix" not in testbed.run("srun --mpi=list 2>&1"):
        pytest.skip("this Slurm has no plugin for PMIx")
    ranks = testbed.run("srun --mpi=pmix -N2 --ntasks-per-node=2 bash -c 'echo $PMIX_RANK'", timeout=300)
    assert sorted(ranks.split()) == ["0", "1", "2", "3"]
