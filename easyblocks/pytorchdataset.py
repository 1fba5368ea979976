##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
EasyBuild support for data sets whose mirrors may be slow, and whose files have to be those that the recipe means.
"""
import os
import sys

from easybuild.easyblocks.generic.dataset import Dataset
from easybuild.tools.build_log import EasyBuildError

# EasyBuild includes easyblocks through symbolic links
sys.path.append(os.path.dirname(os.path.realpath(__file__)))

from pytorch_install.sources.downloads import SteadyDownloads  # noqa: E402 (the line before)


class EB_PyTorchDataset(SteadyDownloads, Dataset):
    """Support for installing a data set: as EasyBuild's Dataset, from the first mirror that is fast enough."""

    def checksum_step(self):
        """Refuse files without a checksum: a mirror could send anything, to be unpacked to any size."""
        if not self.dry_run and len(self.cfg['checksums']) < len(self.src):
            raise EasyBuildError("%s: 'checksums' has fewer entries than the data set has files. Run "
                                 "`eb --inject-checksums --force` on it, and compare with what the publisher says.",
                                 self.cfg.path)
        super().checksum_step()
