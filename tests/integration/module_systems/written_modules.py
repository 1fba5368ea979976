"""Modules that EasyBuild writes for a module system into a separate directory, for what is installed already."""

import shutil

import pytest

from testbed.module_systems import SYSTEMS as VERSIONS
from testbed.module_systems import modulecmd, values
from testbed.recipes import CONTAINER, EASYCONFIGS, VENV, VERSION
from testbed.recipes import module as module_of

SHIFTER = "PyTorch-2.10.0-ngc-26.01-shifter"
SYSTEMS = [
    ("Lmod", "Lua"),
    ("Environment Modules", "Tcl"),
    *(
        pytest.param((version, "Lua" if "Lmod" in version else "Tcl"), marks=pytest.mark.thorough)
        for version, (_, suite) in VERSIONS.items()
        if suite
    ),
]

#: The start of a command that runs with a module's Python, as in its help.
ENTER = {CONTAINER: "singularity exec $SIF ", VENV: "", SHIFTER: "shifter --image=$SHIFTER_IMAGE $RUNSCRIPTS/"}

#: Parameters that a site's recipe may add to the container's; the directory `{site}` has `there` and `elsewhere`.
PARAMETERS = """
central_images = ['{site}/not-there', '{site}/elsewhere']
binds = ['{site}/there', '{site}/not-there', '{site}/there:/mnt/there']
conda_activation = 'source /opt/conda/bin/activate pytorch'
gpu = 'cuda'
"""

NAMES = (
    "SIF RUNSCRIPTS PAYLOADPYTORCH PYTHONUSERBASE WITH_CONDA WITH_VENV SINGULARITY_NV SINGULARITYENV_VIRTUAL_ENV "
    "APPTAINERENV_VIRTUAL_ENV PIP_CONSTRAINT TORCH_EXTENSIONS_DIR"
)
OWN = {
    "nothing": "",
    "lists": "export SINGULARITY_BINDPATH=/a:/mnt/a:ro,/srv APPTAINER_BINDPATH=/p SINGULARITYENV_PREPEND_PATH=/opt/bin",
    "signs": "; ".join(f"""export {name}='library://a/b:1,2&3;$x\\y "z"'""" for name in NAMES.split()),
    "empty": f"export {NAMES.replace(' ', '= ')}=",
}


class Site:
    """A module in a separate directory, and the module system that it is written for."""

    def __init__(self, system, root, recipe):
        self.system = system
        self.root = root
        self.recipe = recipe
        self.name = name = module_of(recipe)
        self.installation = root / "software" / name
        self.user_software = root / "software/PyTorch/.user-software" / self.installation.name

    def run(self, script):
        """Run a bash script that must succeed, with these modules only; return its standard output."""
        return self.system.run(script, self.root / "modules/all")

    def run_unchecked(self, script):
        """Run a bash script with these modules only; return the completed process."""
        return self.system.run_unchecked(script, self.root / "modules/all")

    def keep_no_user_software(self):
        """Delete the user-software of a test."""
        shutil.rmtree(self.user_software.parent, ignore_errors=True)


def write_modules(testbed, system, syntax, root):
    """Let EasyBuild write the modules of all runtimes for a module system, below a directory; return the sites."""
    for directory in ("there", "elsewhere"):
        (root / directory).mkdir()
    for recipe in ENTER:
        prepare_installation(testbed, recipe, root)
    code, options = for_system(testbed, system, syntax)
    testbed.run(f"{code}eb --installpath={root} {options} {' '.join(f'{root}/{recipe}.eb' for recipe in ENTER)}")
    return {recipe: Site(system, root, recipe) for recipe in ENTER}


def for_system(testbed, system, syntax):
    """Return shell code and the options of ``eb`` that write modules alone, for a module system and in a syntax."""
    tool = system.name.replace(" ", "")
    code = "" if tool == "Lmod" else f"export MODULES_CMD={modulecmd(testbed.layout)}\n"
    options = f"--modules-tool={tool} --allow-modules-tool-mismatch --module-syntax={syntax}"
    return code, f"{options} --module-only --force --skip-sanity-check"


def prepare_installation(testbed, recipe, root):
    """Write a recipe below a directory, and links to its installation, if it is installed."""
    repository = testbed.layout.repository
    installed = testbed.layout.easybuild / "software" / module_of(recipe)
    new = root / "software" / module_of(recipe)
    shutil.copytree(repository / "modulefiles/cluster", new / "modulefiles/cluster")
    for part in ("runscripts", "payload"):
        (new / part).symlink_to(repository / part)
    shutil.copytree((installed if installed.exists() else repository) / "bin", new / "bin", symlinks=True)
    if (installed / "share").exists():
        shutil.copytree(installed / "share", new / "share")
    if (installed / "venv").exists():
        shutil.copytree(installed / "venv/bin", new / "venv/bin", symlinks=True)
        (new / "venv/lib").symlink_to(installed / "venv/lib")
    (new / "constraints.txt").write_text(f"torch=={VERSION}+cpu\n")
    for image in installed.glob("*.sif"):
        (new / image.name).symlink_to(image)
    text = (EASYCONFIGS / f"{recipe}.eb").read_text()
    (root / f"{recipe}.eb").write_text(text + (PARAMETERS.format(site=root) if recipe == CONTAINER else ""))


def state(path, names=("SINGULARITY_BINDPATH", "APPTAINER_BINDPATH", "WITH_VENV", "SINGULARITYENV_VIRTUAL_ENV")):
    """Return the values of some variables in a snapshot, None if not set."""
    new = values(path)
    return [new.get(name) for name in names]
