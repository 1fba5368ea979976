"""Special characters in values of recipes, under Lmod and Environment Modules: nothing of them is executed."""

import os

import pytest
from testbed.module_systems import modulecmd

pytestmark = pytest.mark.testbed

SYSTEMS = [("Lmod", "Lua"), ("Lmod", "Tcl"), ("Environment Modules", "Tcl")]

#: What a shell, Lua, Tcl or a format string would take for something else; {} is a file that execution would make.
SPECIAL = (
    """[exec touch {0}] $(touch {0}) `touch {0}` "); os.execute("touch {0}") -- """
    """$HOME $env(HOME) {{ }} ' % %d \\ ;#"""
)

RECIPE = """easyblock = 'EB_PyTorchContainer'
name = 'PyTorch'
version = '2.13.0'
versionsuffix = '-special'
homepage = 'https://pytorch.org/?a=[b]&c={{d}}'
description = {text!r}
toolchain = SYSTEM
image = 'x.sif'
central_images = [{central!r}]
binds = [{bind!r}]
conda_activation = {text!r}
conflicts = [{text!r}]
moduleclass = 'ai'
"""


@pytest.mark.parametrize(("name", "syntax"), SYSTEMS)
def test_special_characters_of_a_recipe_reach_the_environment_as_they_are(testbed, module_system, work, name, syntax):
    system = module_system(name)
    executed = work / "executed"
    text = SPECIAL.format(executed)
    # in a file name no slash, and what separates binds and their options
    in_path = text.replace("/", "!")
    for kind in ("central", "bind"):
        (work / f"{kind} {in_path}").mkdir()
    (work / f"central {in_path}" / "x.sif").touch()
    recipe = work / "PyTorch-2.13.0-special.eb"
    values = {"text": text.replace("\\", "") if syntax == "Tcl" else text, "central": f"{work}/central {in_path}"}
    source = RECIPE.format(**values, bind=f"{work}/bind {in_path}")
    source = source.replace(f"conda_activation = {values['text']!r}", f"conda_activation = {text!r}")
    recipe.write_text(source)
    tool = name.replace(" ", "")
    code = "" if tool == "Lmod" else f"export MODULES_CMD={modulecmd(testbed.layout)}\n"
    testbed.run(f"""{code}eb --modules-tool={tool} --allow-modules-tool-mismatch --module-syntax={syntax} \
--installpath={work} --module-only --force --skip-sanity-check {recipe}""")
    installation = next((work / "software" / "PyTorch").iterdir())
    (installation / "modulefiles" / "cluster").mkdir(parents=True, exist_ok=True)
    (installation / "modulefiles" / "cluster" / "local").write_text("#%Module\n")
    output = system.run(
        """module help PyTorch; module whatis PyTorch; module show PyTorch
module load PyTorch
printf '%s\\0' "$WITH_CONDA" "$SIF" "$SINGULARITY_BIND"
module unload PyTorch
printf '%s\\0' "${SIF-unset}${WITH_CONDA-unset}${SINGULARITY_BIND-unset}" """,
        work / "modules" / "all",
    )
    with_conda, sif, binds, after = output.split("\0")[:4]
    assert with_conda == text
    assert sif == f"{work}/central {in_path}/x.sif"
    assert f"{work}/bind {in_path}" in binds.split(",")
    assert after == "unset" * 3
    assert not executed.exists()
    assert not [path for path in os.listdir(work) if path.startswith("executed")]
