# SPDX-License-Identifier: GPL-2.0-only
"""
EasyBuild support for data sets that --sourcepath covers.

EasyBuild's Dataset uses --sourcepath-data, which is below the prefix if there is one, whatever --sourcepath is.
"""
import sys

from easybuild.easyblocks.generic.dataset import Dataset


class EB_PyTorchDataset(Dataset):
    """Support for installing data sets."""

    def fetch_sources(self, sources=None, checksums=None):
        """With --sourcepath on the command line, and without --sourcepath-data, use the source path."""
        options = {word.partition('=')[0] for word in sys.argv}
        data_sources = self.cfg['data_sources']
        if '--sourcepath' not in options or '--sourcepath-data' in options:
            super().fetch_sources(sources, checksums)
            return
        self.cfg['data_sources'] = []  # by which EasyBuild chooses the path
        try:
            super().fetch_sources(data_sources, checksums)
        finally:
            self.cfg['data_sources'] = data_sources
