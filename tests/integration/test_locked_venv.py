"""Software that is no PyTorch, in an environment from a lock: installed by EasyBuild, loaded, run on host and nodes."""

import hashlib
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.testbed

TREE = Path(__file__).resolve().parents[2]
RECIPE = """easyblock = 'LockedVenv'
name = 'Greeter'
version = '1.0'
homepage = 'https://example.org'
description = "A command of a Python package."
toolchain = SYSTEM
sources = ['greeter.txt']
checksums = ['{checksum}']
moduleclass = 'tools'
"""


@pytest.fixture
def recipe(work):
    """A recipe with a lock of one wheel, which pip finds in `work`."""
    wheel, info = work / "greeter-1.0-py3-none-any.whl", "greeter-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("greeter.py", "import sys\n\n\ndef main():\n    print('greeter', sys.prefix)\n")
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\ngreet = greeter:main\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: greeter\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    lock = f"greeter==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"
    (work / "greeter.txt").write_text(lock)
    path = work / "Greeter-1.0.eb"
    path.write_text(RECIPE.format(checksum=hashlib.sha256(lock.encode()).hexdigest()))
    return path


def test_its_commands_run_on_host_and_nodes_and_the_users_python_stays(testbed, recipe, work):
    output = testbed.run(
        f"""before=$(command -v python3)
PIP_NO_INDEX=1 PIP_FIND_LINKS={work} eb --installpath={work} --sourcepath={work} {recipe} >eb.log
module use {work}/modules/all; module load Greeter
greet; srun -N2 -n2 greet
[ "$before" = "$(command -v python3)" ] && echo same
$EBROOTGREETER/venv/bin/python -m venv --without-pip --system-site-packages own; own/bin/python -m greeter; echo $?
own/bin/python -c 'import greeter; print(greeter.__file__)'""",
        cwd=work,
    )
    root = f"{work}/software/Greeter/1.0/venv"
    assert output.splitlines()[:4] == [f"greeter {root}"] * 3 + ["same"]
    assert output.splitlines()[-1].startswith(f"{root}/lib/python3.11/site-packages/greeter.py")


@pytest.mark.thorough  # the other test installs by the same easyblock
def test_the_recipe_of_reframe_is_installed_from_the_index(testbed, work):
    recipe = next(TREE.glob("easyconfigs/r/ReFrame/*.eb"))
    output = testbed.run(
        f"""eb --installpath={work} {recipe} >eb.log
module use {work}/modules/all; module load ReFrame
reframe --version; srun -n1 reframe --version""",
        cwd=work,
        timeout=600,
    )
    assert set(output.split()) == {recipe.name.split("-")[1]}
