"""Software that is no PyTorch, in an environment from a lock: installed by EasyBuild, loaded, run on host and nodes."""

import pytest
from distributions import sha256, write_wheel
from easybuild_prefix import EasyBuildPrefix
from repository import TREE

pytestmark = pytest.mark.testbed


#: As `uv export --format pylock.toml` writes it; nothing is fetched from its addresses.
PYLOCK = """lock-version = "1.0"
[[packages]]
name = "greeter"
version = "1.0"
marker = "sys_platform == 'linux'"
wheels = [{{ url = "https://files.invalid/{wheel.name}", hashes = {{ sha256 = "{digest}" }} }}]
"""


@pytest.mark.parametrize("lock", ["pylock.toml", pytest.param("greeter.txt", marks=pytest.mark.thorough)])
def test_its_commands_run_on_host_and_nodes_and_the_users_python_stays(testbed, work, lock):
    files = {"greeter.py": "import sys\n\n\ndef main():\n    print('greeter', sys.prefix)\n"}
    wheel = write_wheel(work, "greeter", "1.0", files, commands="greet = greeter:main")
    text = PYLOCK if lock == "pylock.toml" else "greeter==1.0 --hash=sha256:{digest}\n"
    (work / lock).write_text(text.format(wheel=wheel, digest=sha256(wheel)))
    greeter = EasyBuildPrefix(testbed, work, "Greeter")
    greeter.write("LockedVenv", f"sources = ['{lock}']\nchecksums = ['{sha256(work / lock)}']")
    output = testbed.run(
        f"""before=$(command -v python3)
PIP_NO_INDEX=1 PIP_FIND_LINKS={work} {greeter.command("--fetch", f"--sourcepath={work}/sources")} >eb.log
PIP_NO_INDEX=1 {greeter.command(f"--sourcepath={work}/sources")} >eb.log
{greeter.load}
greet; srun -N2 -n2 greet
[ "$before" = "$(command -v python3)" ] && echo same""",
        cwd=work,
    )
    assert output.splitlines() == [f"greeter {work}/software/Greeter/1.0/venv"] * 3 + ["same"]


@pytest.mark.thorough  # the other test installs by the same easyblock
def test_the_recipe_of_reframe_is_installed_from_the_index(testbed, work):
    recipe = next(TREE.glob("easyconfigs/r/ReFrame/*.eb"))
    output = testbed.run(
        f"""eb --installpath={work} {recipe} >eb.log
module use {work}/modules/all; module load ReFrame
reframe --version; srun -n1 reframe --version""",
        cwd=work,
    )
    assert set(output.split()) == {recipe.name.split("-")[1]}
