"""The launcher without EasyBuild: its wheel in an image that is not ours."""

import shutil
import sys

import pytest
from meeting import MEET

pytestmark = pytest.mark.testbed

PROBE = f"""{MEET}
if rank == 0:
    print("rank 0 met", found - 1, "others with", os.path.realpath("/proc/self/exe"))
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
    assert done.startswith("rank 0 met 3 others with /usr/bin/python3")
