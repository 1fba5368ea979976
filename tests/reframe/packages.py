"""User-software: a package that a user installs is imported by every rank, and can be removed."""

import reframe as rfm
import reframe.utility.sanity as sn
from pytorch_job import UPGRADE, PyTorchJob
from reframe.core.builtins import run_before, sanity_function

WHEEL = "site_check-1.0-py3-none-any.whl"
#: One write per rank: ranks share the output.
IMPORT = r'''"import os, site_check, torch; os.write(1, f'rank has {site_check.WORD}\n'.encode())"'''


@rfm.simple_test
class UserSoftware(PyTorchJob):
    """pip of the module, into this user's directory for this module; needs no network."""

    descr = "pip install --user, import on all ranks, pip uninstall"
    nodes = 2
    tags = UPGRADE

    @run_before("run")
    def set_commands(self):
        self.prerun_cmds = [
            "trap 'pip uninstall --quiet --yes site-check' EXIT",
            f"python -m zipfile -c {WHEEL} site_check.py site_check-1.0.dist-info",
            "mkdir -p elsewhere",  # the ranks must not find the module in their working directory
            f"pip install --user --quiet --no-index --no-deps ./{WHEEL}",
            "cd elsewhere",
        ]
        self.executable = self.runscript("conda-python-distributed")
        self.executable_opts = ["-c", IMPORT]
        self.postrun_cmds = ["cd ..", "list-packages --user"]

    @sanity_function
    def is_imported_everywhere(self):
        ranks = sn.findall(r"^rank has installed by a user$", self.stdout)
        return sn.all(
            [
                sn.assert_eq(sn.count(ranks), self.num_tasks),
                sn.assert_found(r"site[-_]check", self.stdout),
            ]
        )
