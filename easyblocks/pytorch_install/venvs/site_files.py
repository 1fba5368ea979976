# SPDX-License-Identifier: GPL-2.0-only
"""
Files that Python reads when it starts in a venv module, or in an environment on top of it.
"""
import os

from easybuild.tools.filetools import copy_file, read_file, write_file

from pytorch_install.runtime import PROGRAMS


def install_site_files(library):
    """Install the files; `library` is the environment's directory of the standard library."""
    packages, customize = os.path.join(library, 'site-packages'), os.path.join(library, 'sitecustomize.py')
    copy_file(os.path.join(PROGRAMS, 'keep_torch.py'), os.path.join(packages, 'keep_torch.py'))
    write_file(os.path.join(packages, 'keep_torch.pth'), 'import keep_torch\n')
    if not os.path.islink(customize):  # the host's own, as a copy, stays in front
        write_file(customize, read_file(os.path.join(PROGRAMS, 'explain_torch.py')), append=True)
