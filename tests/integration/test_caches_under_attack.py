"""Another ordinary user of a node attacks the caches of a launch: nobody is let in, and no launch waits."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

RUNSCRIPTS = Path(__file__).parents[2] / "runscripts"
ATTACKER = Path(__file__).with_name("cache_attacker.py")
CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "MIOPEN_USER_DB_PATH", "CUDA_CACHE_PATH", "AITER_JIT_DIR")
#: Prints owner and mode of each cache and of the two directories above it.
PROBE = f"""
import os
for name in {CACHES}:
    path = os.path.realpath(os.environ[name])
    for each in (path, os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
        found = os.lstat(each)
        print('cache', found.st_uid, oct(found.st_mode))
"""
#: Launches while another user attacks, for each argument; prints how long it takes. /tmp has few inodes.
UNDER_ATTACK = """set -e
mount -t tmpfs -o mode=1777,nr_inodes=200 tmpfs /tmp
as_user() { local id=$1; shift; exec setpriv --reuid=$id --regid=$id --clear-groups --inh-caps=-all "$@"; }
trap 'kill $attacker 2>/dev/null || :' EXIT
for kind; do
    find /tmp -mindepth 1 -delete
    (as_user 65533 bash -c 'umask 0; mkdir -p /tmp/open/scratch; rm -rf home/.cache; mkdir -m 700 home/.cache')
    (as_user 65532 python3 attacker.py 65533 $kind > attack) & attacker=$!
    until grep -qs ready attack; do kill -0 $attacker || exit 3; sleep 0.01; done
    start=${EPOCHREALTIME/./}
    tmpdir=
    [ $kind != replace ] || tmpdir=$PWD/home/scratch
    (as_user 65533 env -i PATH=$PATH HOME=$PWD/home TMPDIR=$tmpdir USER=victim \
        python3 -I -S runscripts/pytorch_launch/__main__.py conda-python-distributed probe.py) || echo failed
    echo took $(((${EPOCHREALTIME/./} - start) / 1000)) ms
    kill $attacker; wait $attacker || true; grep -v ready attack || true
done
"""
KINDS = ["link", "race", "replace", "filling"]  # tests/unit/runscripts has what stays as it is


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of two users")
@pytest.mark.parametrize("count", [1, pytest.param(9, marks=pytest.mark.thorough)])
def test_another_user_can_neither_write_into_the_caches_nor_delay_a_launch(count):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:  # noqa: S108  (/tmp is hidden by the test)
        place = Path(directory)
        place.chmod(0o755)
        shutil.copytree(RUNSCRIPTS / "pytorch_launch", place / "runscripts/pytorch_launch")
        shutil.copy(ATTACKER, place / "attacker.py")
        (place / "probe.py").write_text(PROBE)
        (place / "home").mkdir()
        os.chown(place / "home", 65533, 65533)
        (place / "home/scratch").symlink_to("/tmp/open/scratch")  # noqa: S108
        path = f"{Path(os.path.realpath(sys.executable)).parent}:/usr/bin:/bin"
        command = ["unshare", "--mount", "bash", "-c", UNDER_ATTACK, "bash", *KINDS * count]
        done = subprocess.run(
            command, cwd=place, env={"PATH": path}, text=True, capture_output=True, check=False, timeout=600
        )
        if done.returncode and "unshare" in done.stderr:
            pytest.skip(f"this machine denies namespaces: {done.stderr}")
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    launches = len(KINDS) * count
    times = [int(milliseconds) for milliseconds in re.findall(r"^took (\d+) ms$", done.stdout, re.MULTILINE)]
    assert len(times) == launches
    assert max(times) < 30_000  # on a machine with other work
    private = r"^cache 65533 0o40700$"
    directories = 3 * len(CACHES) * launches
    assert len(re.findall(private, done.stdout, re.MULTILINE)) == directories
    assert len(done.stdout.splitlines()) == launches + directories, "a cache was written into"
