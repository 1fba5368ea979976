"""Special characters in values of recipes, under Lmod and Environment Modules: never executed."""

import re

import pytest

from testbed.module_systems import modulecmd

pytestmark = pytest.mark.testbed

SYSTEMS = [
    ("Lmod", "Lua"),
    pytest.param("Lmod", "Tcl", marks=pytest.mark.thorough),
    ("Environment Modules", "Tcl"),
]

#: Characters that are special in a shell, Lua, Tcl or a format string; without a slash, as they are in a file name.
SPECIAL = """[exec touch E] $(touch E) `touch E` "); os.execute("touch E") -- $HOME $env(HOME) { } ' % %d \\ ;#"""

RECIPE = """easyblock = 'EB_PyTorchContainer'
name = 'PyTorch'
version = '2.13.0'
versionsuffix = '-special'
homepage = 'https://pytorch.org/?a=[b]&c={{d}}'
description = {description!r}
toolchain = SYSTEM
image = 'x.sif'
central_images = [{central!r}]
binds = [{bind!r}]
conda_activation = {text!r}
moduleclass = 'ai'
"""


@pytest.mark.parametrize(("name", "syntax"), SYSTEMS)
def test_special_characters_of_a_recipe_reach_the_environment_unchanged(testbed, module_system, work, name, syntax):
    system = module_system(name)
    central, bind = work / f"central {SPECIAL}", work / ("bind " + re.sub(r'[,"\\]', "", SPECIAL))
    for directory in (central, bind):
        directory.mkdir()
    (central / "x.sif").touch()
    recipe = work / "PyTorch-2.13.0-special.eb"
    # a backslash in the help of a Tcl module is an error
    description = SPECIAL.replace("\\", "") if syntax == "Tcl" else SPECIAL
    recipe.write_text(RECIPE.format(description=description, central=str(central), bind=str(bind), text=SPECIAL))
    tool = name.replace(" ", "")
    code = "" if tool == "Lmod" else f"export MODULES_CMD={modulecmd(testbed.layout)}\n"
    testbed.run(f"""{code}eb --modules-tool={tool} --allow-modules-tool-mismatch --module-syntax={syntax} \
--installpath={work} --module-only --force --skip-sanity-check {recipe}""")
    installation = next((work / "software" / "PyTorch").iterdir())
    (installation / "modulefiles" / "cluster").mkdir(parents=True, exist_ok=True)
    (installation / "modulefiles" / "cluster" / "local").write_text("#%Module\n")
    output = system.run(
        f"""cd {work}
module help PyTorch; module whatis PyTorch; module show PyTorch
module load PyTorch
printf '%s\\0' "$WITH_CONDA" "$SIF" "$SINGULARITY_BINDPATH"
module unload PyTorch
printf '%s\\0' "${{SIF-unset}}${{WITH_CONDA-unset}}${{SINGULARITY_BINDPATH-unset}}" """,
        work / "modules" / "all",
    )
    with_conda, sif, binds, after = output.split("\0")[:4]
    assert with_conda == SPECIAL
    assert sif == f"{central}/x.sif"
    assert str(bind) in binds.split(",")
    assert after == "unset" * 3
    assert not (work / "E").exists()
