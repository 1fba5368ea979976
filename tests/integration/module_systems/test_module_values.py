"""Special characters in values of recipes, under Lmod and Environment Modules: never executed."""

import re

import pytest
from easybuild_prefix import EasyBuildPrefix
from written_modules import SYSTEMS, for_system

pytestmark = pytest.mark.testbed

#: Characters that are special in a shell, Lua, Tcl or a format string; without a slash, as they are in a file name.
SPECIAL = """[exec touch E] $(touch E) `touch E` "); os.execute("touch E") -- $HOME $env(HOME) { } ' % %d \\ ;#"""

LINES = """homepage = 'https://pytorch.org/?a=[b]&c={{d}}'
description = {description!r}
image = 'x.sif'
central_images = [{central!r}]
binds = [{bind!r}]
conda_activation = {text!r}"""


@pytest.mark.parametrize("names", SYSTEMS[:2], ids="-".join)
def test_special_characters_of_a_recipe_reach_the_environment_unchanged(testbed, module_system, work, names):
    name, syntax = names
    system = module_system(name)
    central = work / f"central {SPECIAL}"
    bind = work / ("bind " + re.sub(r'[,"\\]', "", SPECIAL))
    for directory in (central, bind):
        directory.mkdir()
    (central / "x.sif").touch()
    prefix = EasyBuildPrefix(testbed, work)
    # a backslash in the help of a Tcl module is an error
    description = SPECIAL.replace("\\", "") if syntax == "Tcl" else SPECIAL
    lines = LINES.format(description=description, central=str(central), bind=str(bind), text=SPECIAL)
    prefix.write("EB_PyTorchContainer", lines)
    code, options = for_system(testbed, system, syntax)
    testbed.run(code + prefix.command(options))
    profiles = prefix.installation / "modulefiles" / "cluster"
    profiles.mkdir(parents=True, exist_ok=True)
    (profiles / "local").write_text("#%Module\n")
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
