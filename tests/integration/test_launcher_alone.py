"""The launcher without EasyBuild: its wheel in an image that is not ours."""

import shutil
import sys

import pytest

pytestmark = pytest.mark.testbed

#: Rank 0 counts the ranks that find it by the rendezvous.
PROBE = """import os, socket, time
rank, size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
if rank == 0:
    with socket.create_server(("", port)) as server:
        ranks = sorted(server.accept()[0].recv(1)[0] for _ in range(size - 1))
    print("rank 0 met", ranks, "with", os.path.realpath("/proc/self/exe"))
else:
    for _ in range(600):
        try:
            socket.create_connection((os.environ["MASTER_ADDR"], port)).sendall(bytes([rank]))
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
"""
#: With this host's own archives of its release.
DEBIAN = """release=$(. /etc/os-release; echo $VERSION_CODENAME)
apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    grep -E " $release(-updates|-security)? (main|universe)$" >sources.list
mmdebstrap --quiet --variant=minbase --include=python3-pip $release root.tar sources.list
mkdir root && tar -x --no-same-owner --exclude './dev/*' -f root.tar -C root
"""


@pytest.mark.thorough
def test_a_world_of_4_on_2_nodes_starts_in_a_debian_image_with_the_wheel(testbed, work):
    if testbed.obstacle:
        pytest.skip(f"no containers here: {testbed.obstacle}")
    if not shutil.which("mmdebstrap"):
        pytest.skip("mmdebstrap, which makes the image, is not installed")
    (work / "probe.py").write_text(PROBE)
    done = testbed.run(
        f"""cp -r {testbed.layout.repository}/runscripts source
{sys.executable} -m pip wheel -q --no-index --no-deps --no-build-isolation -w wheels ./source
{DEBIAN}
cp wheels/*.whl root/opt
apptainer --silent exec --writable root sh -c 'PIP_BREAK_SYSTEM_PACKAGES=1 pip3 install --no-index /opt/*.whl' >&2
env -i PATH=$PATH HOME=$HOME SLURM_CONF=$SLURM_CONF srun -N2 --ntasks-per-node=2 \\
    apptainer --silent exec --bind $PWD root conda-python-distributed probe.py""",
        cwd=work,
    )
    assert done.startswith("rank 0 met [1, 2, 3] with /usr/bin/python3")
