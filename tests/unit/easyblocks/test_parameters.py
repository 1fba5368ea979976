"""Each parameter that the easyblocks add, with values of wrong types: an error before the first step."""

import importlib
import re

import pytest
from easybuild.framework.easyconfig.easyconfig import EasyConfig, get_easyblock_class
from easybuild.tools.build_log import EasyBuildError
from recipes import RECIPES

pytestmark = pytest.mark.early

#: One recipe for each easyblock.
OF_EASYBLOCKS = {
    re.search("easyblock = '(EB_.*)'", path.read_text())[1]: path for path in RECIPES if "/PyTorch/" in str(path)
}
#: Values that no parameter takes.
WRONG = [5, [5], b"/scratch", [b"/a"], [None], "/a\nb", ["/a\nb"]]


@pytest.mark.parametrize(
    "name",
    # the others have parameters of these two, and a few of their own
    [
        name if name in ("EB_PyTorchContainer", "EB_PyTorchVenv") else pytest.param(name, marks=pytest.mark.thorough)
        for name in OF_EASYBLOCKS
    ],
)
def test_a_value_of_a_wrong_type_is_an_error_with_file_parameter_value_and_what_is_expected(prefix, name):
    parameters = importlib.import_module("pytorch_install.parameters")
    recipe = EasyConfig(str(OF_EASYBLOCKS[name]))
    parameters.check_parameters(recipe, parameters.EXPECTED)
    for parameter in get_easyblock_class(name).extra_options():
        before = recipe[parameter]
        for value in WRONG:
            recipe[parameter] = value
            wrong = re.escape(f"{OF_EASYBLOCKS[name].name}: {parameter} = {value!r} is wrong: expected ")
            with pytest.raises(EasyBuildError, match=f"^{wrong}"):
                parameters.check_parameters(recipe, parameters.EXPECTED)
        recipe[parameter] = before


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("ContainerImage", "binds = '/scratch'"),
        ("ContainerImage", "commands = ['/bin/jq']"),
        ("ContainerImage", "commands = ['..']"),
        ("ContainerImage", "binds = ['/a:b']"),
        ("ContainerImage", "mksquashfs_args = '-comp \"lz4'"),
        ("EB_PyTorchContainer", "debian_packages = 'jq'"),
        ("EB_PyTorchContainer", "commands = ['bin/python']"),
        ("EB_PyTorchContainer", "binds = ['/x,/y']"),  # which a module cannot hold
        ("EB_PyTorchContainer", "conflicts = ['a[exec]']"),
        ("EB_PyTorchVenv", "source_packages = ['mpi4py']"),
        ("EB_PyTorchVenv", "source_packages = [('mpi4py', {'MPICC': '$(command -v cc)'})]"),
        ("EB_PyTorchVenv", "conflicts = 'pytorch'"),
    ],
)
def test_eb_ends_before_the_first_step_also_for_other_software(container, kind, line):
    with pytest.raises(EasyBuildError, match=rf"^PyTorch-2\.13\.0-test\.eb: {re.escape(line)} is wrong: expected"):
        container(line, kind)
