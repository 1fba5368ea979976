"""Shell code that turns a user's shell into a login shell of the testbed's cluster."""

import os
import re
import shlex
from pathlib import Path

from testbed.packages import find_lmod

#: The directory of the four MNIST files, for machines without a network.
MNIST_VARIABLE = "MNIST_FILES"
FOREIGN = ("SLURM_", "SBATCH_", "SALLOC_", "SRUN_", "EASYBUILD_", "__PYTORCH_EASYBUILD_")


def environment_code(layout):
    """Return lines for `eval` in bash or zsh: Slurm, Lmod, EasyBuild and the container runtime of `layout`.

    The last line loads this tree's bootstrap module, so that ``eb`` and ``module`` find the recipes.
    """
    exports = {
        "PYTORCH_TESTBED": layout.root,
        "SLURM_CONF": layout.slurm_conf,
        "EB_PYTHON": layout.eb_venv / "bin" / "python",  # stays off the PATH
        "EASYBUILD_PREFIX": layout.easybuild,
        "EASYBUILD_SOURCEPATH": os.pathsep.join(source_path(layout)),
        # each by itself: a site's configuration file would take precedence over the prefix
        "EASYBUILD_INSTALLPATH": layout.easybuild,
        "EASYBUILD_BUILDPATH": layout.easybuild / "build",
        "EASYBUILD_REPOSITORYPATH": layout.easybuild / "ebfiles_repo",
        "EASYBUILD_TMPDIR": layout.temporary,
    }
    if os.geteuid() == 0:
        exports["EASYBUILD_ALLOW_USE_AS_ROOT_AND_ACCEPT_CONSEQUENCES"] = 1
        # mpirun(1), "Running as root": for job scripts that start ranks with mpirun
        exports.update({"OMPI_ALLOW_RUN_AS_ROOT": 1, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1})
    # Lmod removes duplicates from every path that a module extends; unloading would not restore them
    path = dict.fromkeys([str(layout.bin), *os.environ.get("PATH", os.defpath).split(os.pathsep)])
    exports["PATH"] = os.pathsep.join(path)
    # variables of another cluster: of an allocation or an EasyBuild around this shell
    own = {name for name in os.environ if f"__CLUSTER_SET_{name}" in os.environ}  # of a loaded profile
    # env(1) accepts any name for a variable; `eval` would execute one that is not an identifier
    names = {name for name in os.environ if re.fullmatch(r"\w+", name, re.ASCII)}
    foreign = {name for name in names if name.startswith(FOREIGN)} - own - set(exports)
    lines = [f"unset {' '.join(sorted(foreign))}"] if foreign else []
    lines += [f"export {name}={shlex.quote(str(value))}" for name, value in exports.items()]
    lines += [
        f". {shlex.quote(str(find_lmod()))}",
        f"module use {shlex.quote(str(layout.repository / 'modulefiles'))}",
        "module load pytorch-easybuild",
    ]
    return "\n".join(lines)


def program_code(layout):
    """Return the lines of `environment_code` for commands of a program, whose own environment is not the user's."""
    return f"{environment_code(layout)}\nexport PYTORCH_LAUNCH_ACTIVE=0"


def source_path(layout):
    """Return where EasyBuild looks for sources: its own downloads first, then the user's, and the MNIST files."""
    own = [str(layout.easybuild / "sources")]
    given = os.environ.get("EASYBUILD_SOURCEPATH", "").split(os.pathsep)
    for path in [*given, os.environ.get(MNIST_VARIABLE, "")]:
        if path and path not in own and Path(path).is_dir():
            own.append(path)
    return own
