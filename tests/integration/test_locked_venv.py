"""Software that is no PyTorch, in an environment from a lock: installed by EasyBuild, loaded, run on host and nodes."""

from pathlib import Path

import pytest
from distributions import sha256, write_wheel
from easybuild_prefix import EasyBuildPrefix

pytestmark = pytest.mark.testbed

TREE = Path(__file__).resolve().parents[2]


def test_its_commands_run_on_host_and_nodes_and_the_users_python_stays(testbed, work):
    files = {"greeter.py": "import sys\n\n\ndef main():\n    print('greeter', sys.prefix)\n"}
    wheel = write_wheel(work, "greeter", "1.0", files, commands="greet = greeter:main")
    lock = work / "greeter.txt"
    lock.write_text(f"greeter==1.0 --hash=sha256:{sha256(wheel)}\n")
    greeter = EasyBuildPrefix(testbed, work, "Greeter")
    greeter.write("LockedVenv", f"sources = ['{lock.name}']\nchecksums = ['{sha256(lock)}']")
    output = testbed.run(
        f"""before=$(command -v python3)
PIP_NO_INDEX=1 PIP_FIND_LINKS={work} {greeter.command(f"--sourcepath={work}")} >eb.log
{greeter.load}
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
