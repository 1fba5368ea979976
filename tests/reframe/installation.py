"""Installation from a recipe into the directory of the test, beside the site's own installation."""

from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
from pytorch_job import UPGRADE, passes
from reframe.core.builtins import performance_function, run_before, sanity_function

MODULEFILES = Path(__file__).resolve().parents[2] / "modulefiles"


@rfm.simple_test
class InstallRecipe(rfm.RunOnlyRegressionTest):
    """``eb`` from fetch to module, then the doctor with the new module.

    The other tests use installed modules. To run them with this one, keep it (--keep-stage-files) and add its modules
    with --module-path.
    """

    descr = "eb installs the recipe in an empty directory; the doctor finds no fault"
    valid_systems = ["+install"]
    valid_prog_environs = ["+recipe"]
    tags = UPGRADE | {"install"}
    time_limit = "2h"

    @run_before("run")
    def set_commands(self):
        extras = self.current_environ.extras
        self.prerun_cmds = [f"module use {MODULEFILES}", "module load pytorch-easybuild", "start=$(date +%s)"]
        self.executable = "eb"
        # --rebuild: the site's own module of this name does not count; sites set software and modules apart
        self.executable_opts = [
            "--rebuild",
            "--installpath=$PWD/installed",
            "--installpath-software=$PWD/installed/software",
            "--installpath-modules=$PWD/installed/modules",
            "--repositorypath=$PWD/installed/ebfiles_repo",
            extras["recipe"],
        ]
        self.postrun_cmds = [
            'echo "installed in $(($(date +%s) - start)) s"',
            "module use $PWD/installed/modules/all",
            f"module load {extras['module']}",
            'echo "module in $EBROOTPYTORCH"',
            "pytorch-doctor --only module,torch,disk",
        ]

    @sanity_function
    def is_installed_and_healthy(self):
        patterns = "^== COMPLETED: Installation ended", rf"^module in {self.stagedir}/installed/", r"^\S+: \d+ ok"
        return passes(self.stdout, *patterns, faults=r".*\bFAIL\b.*(?:\n .*)*")

    @performance_function("s")
    def installation_time(self):
        return sn.extractsingle(r"^installed in (\d+) s$", self.stdout, 1, float)
