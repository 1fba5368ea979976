"""Nodes with ports in use, directories of other users, another torch, and a name server that does not answer."""

import os
import re

import pytest

pytestmark = pytest.mark.testbed

#: Listens on a free port until it is killed, and prints its number.
STRANGER = """
import socket, sys, time
with socket.create_server(('', 0)) as server:
    print(server.getsockname()[1], flush=True)
    time.sleep(600)
"""
#: Prints a sum over all ranks, and the first address of the rendezvous.
MEET = """
import os, socket, time, torch, torch.distributed as dist
dist.init_process_group('gloo')
total = torch.ones(1)
dist.all_reduce(total)
address = socket.getaddrinfo(os.environ['MASTER_ADDR'], None)[0][4][0]
os.write(1, f"{int(total)} of {dist.get_world_size()} by {address}\\n".encode())
dist.destroy_process_group()
time.sleep(0.1)  # docs/troubleshooting.md: with gloo, a process that ends at once may abort
"""
#: Prints the directories of a rank's caches, whether they are links, their owner and mode.
CACHES = """
import os
for name in ('MIOPEN_USER_DB_PATH', 'MIOPEN_CUSTOM_CACHE_DIR', 'TRITON_CACHE_DIR', 'TORCHINDUCTOR_CACHE_DIR',
             'CUDA_CACHE_PATH', 'AITER_JIT_DIR'):
    path, stat = os.environ[name], os.stat(os.environ[name])
    os.write(1, f"{path} {os.path.realpath(path) == path} {stat.st_uid} {stat.st_mode & 0o777:o}\\n".encode())
"""


@pytest.mark.parametrize("module", [pytest.param("container", marks=pytest.mark.thorough), "venv"], indirect=True)
def test_another_process_on_the_master_port_ends_the_step_with_a_message(testbed, module, enter, work):
    (work / "stranger.py").write_text(STRANGER)
    result = testbed.run_unchecked(
        f"""module load {module}
python3 stranger.py > port & stranger=$!
until [ -s port ]; do sleep 0.1; done
MASTER_PORT=$(< port) srun -N2 -n2 {enter}conda-python-distributed -c \
    "import torch.distributed as dist; dist.init_process_group('gloo')"
status=$?
kill $stranger
exit $status""",
        cwd=work,
    )
    assert result.returncode != 0
    assert "is in use by another program" in result.stderr


def test_ranks_connect_to_names_whose_first_address_is_ipv6(testbed, venv, work):
    (work / "hosts").write_text("".join(f"::1 nid00100{node}\n127.0.0.1 nid00100{node}\n" for node in (1, 2)))
    (work / "meet.py").write_text(MEET)
    output = testbed.run(
        f"""module load {venv}
srun -N2 -n2 -w nid001001,nid001002 unshare --map-root-user --mount bash -c '
mount --bind hosts /etc/hosts && exec conda-python-distributed meet.py'""",
        cwd=work,
    )
    assert output.splitlines() == ["2 of 2 by ::1"] * 2


@pytest.mark.parametrize("module", [pytest.param("container", marks=pytest.mark.thorough), "venv"], indirect=True)
def test_several_ranks_do_not_wait_for_a_name_server_that_does_not_answer(testbed, module, enter):
    """`benchmarks/run --only dead-dns` measures the difference."""
    code = "import os; os.write(1, (os.environ.get('RES_OPTIONS', 'untouched') + chr(10)).encode())"
    line = f'{enter}conda-python-distributed -c "{code}"'
    output = testbed.run(f"""module load {module}
srun -n1 {line}
srun -n2 {line}
RES_OPTIONS=ndots:2 srun -n2 {line}""")
    assert output.splitlines() == ["untouched", *["timeout:1 attempts:1"] * 2, *["ndots:2"] * 2]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("container", "conda-python-distributed -c"),
        ("venv", "conda-python-simple -c"),
        pytest.param("container", "conda-python-simple -c", marks=pytest.mark.thorough),
        pytest.param("venv", "conda-python-distributed -c", marks=pytest.mark.thorough),
    ],
    indirect=["module"],
)
def test_another_torch_on_the_host_is_not_imported(testbed, module, enter, work, line):
    for name in ("python", "libraries", "own"):
        (work / name).mkdir()
    (work / "python" / "torch.py").write_text("raise SystemExit('the poisoned one')")
    (work / "libraries" / "libc10.so").write_text("not a library")
    (work / "own" / "own.py").write_text("here = True")
    poison = f"""
export PYTHONPATH={work}/python:{work}/own LD_LIBRARY_PATH={work}/libraries
export HOME={work}/home
for minor in $(seq 8 20); do
    mkdir -p $HOME/.local/lib/python3.$minor/site-packages
    cp {work}/python/torch.py $HOME/.local/lib/python3.$minor/site-packages
done
srun -n1 {enter}{line} "import own, torch; print(own.here, torch.__file__)"
"""
    for script in (f"module load {module}\n{poison}", f"{poison.split('srun')[0]}\nmodule load {module}\n{poison}"):
        output = testbed.run(script)
        assert output.startswith("True /")
        assert str(work) not in output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory that belongs to another user")
@pytest.mark.parametrize("what", ["directory", "symlink"])
@pytest.mark.parametrize("module", ["container", pytest.param("venv", marks=pytest.mark.thorough)], indirect=True)
def test_a_directory_or_link_of_another_user_is_never_used_as_cache(testbed, module, enter, work, what):
    """At every path: the directory of the user, of the job, and of each cache."""
    stranger = 12345
    (work / "caches.py").write_text(CACHES)
    names = ["", "/JOB", *(f"/JOB/{name}" for name in ("miopen-db", "miopen-kernels", "triton", "inductor", "cuda"))]
    script = "set -e\n"
    for number, name in enumerate([*names, "/JOB/aiter"]):
        tmp, trap = work / f"tmp{number}", work / f"trap{number}"
        tmp.mkdir(mode=0o1777)
        tmp.chmod(0o1777)
        trap.mkdir()
        trap.chmod(0o777)
        os.chown(trap, stranger, stranger)
        script += f"""
export TMPDIR={tmp}
target={tmp}/pytorch-$(id -u){name}
target=${{target/JOB/$SLURM_JOB_ID-nid001001}}
(umask 077; mkdir -p $(dirname $target))
if [ {what} = directory ]; then mkdir -m 777 $target; else ln -s {trap} $target; fi
chown -h {stranger}:{stranger} $target
srun -n2 {enter}conda-python-distributed caches.py
echo end $target
"""
    (work / "script").write_text(script)
    output = testbed.run(f"module load {module}\nsalloc --quiet -N1 -n2 -w nid001001 bash script", cwd=work)
    *parts, rest = re.split(r"^end (.*)\n", output, flags=re.MULTILINE)
    assert len(parts) == 16 and not rest
    for text, target in zip(parts[::2], parts[1::2]):
        lines = text.splitlines()
        assert len(lines) == 12
        for line in lines:
            path, real, owner, mode = line.split()
            assert not (path + "/").startswith(target + "/")
            assert (real, owner, mode) == ("True", "0", "700")
    assert not [path for trap in work.glob("trap*") for path in trap.iterdir()]
