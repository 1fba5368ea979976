##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
EasyBuild support for data sets with slow mirrors, whose files must have checksums.
"""
import os
import sys

# EasyBuild includes easyblocks through symbolic links
sys.path.append(os.path.dirname(os.path.realpath(__file__)))

# first, as it checks EasyBuild's version
import pytorch_install  # noqa: E402, F401, I001 (the lines before)

from easybuild.easyblocks.generic.dataset import Dataset  # noqa: E402
from easybuild.framework.easyblock import EasyBlock  # noqa: E402
from easybuild.framework.easyconfig import CUSTOM  # noqa: E402
from easybuild.tools.build_log import EasyBuildError, print_warning  # noqa: E402
from easybuild.tools.config import build_option, source_paths, source_paths_data  # noqa: E402
from easybuild.tools.filetools import mkdir  # noqa: E402

from pytorch_install.sources.directories import source_directories, writable_directory  # noqa: E402
from pytorch_install.sources.downloads import fetch_from_first  # noqa: E402


class EB_PyTorchDataset(Dataset):
    """Support for installing a data set as EasyBuild's Dataset, from the first mirror that is fast enough."""

    @staticmethod
    def extra_options(extra_vars=None):
        """Parameters for data sets."""
        extra_vars = Dataset.extra_options(extra_vars)
        # EasyBuild before 5.4 does not have it
        extra_vars.setdefault('object_storage_ignore_dirs',
                              [[], "Directories of the installation that remain plain files", CUSTOM])
        return extra_vars

    def obtain_file(self, filename, **kwargs):
        """Find a file as EasyBuild does, else download it; EasyBuild would wait forever for a slow server."""
        urls = [*(kwargs.get('urls') or []), *self.cfg['source_urls']]
        special = any(kwargs.get(name) for name in ('extension', 'no_download', 'force_download', 'git_config'))
        if self.dry_run or special or not urls or not all(isinstance(url, str) for url in urls):
            return super().obtain_file(filename, **kwargs)
        found = super().obtain_file(filename, **{**kwargs, 'no_download': True, 'warning_only': True})
        if found:
            return found
        directories = source_directories(kwargs.get('alt_location') or self.name,
                                         paths=source_paths_data() if self.cfg['data_sources'] else source_paths())
        path = os.path.join(writable_directory(directories) or directories[0], filename)
        mkdir(os.path.dirname(path), parents=True)
        name = kwargs.get('download_filename') or filename
        failures = fetch_from_first([url + ('' if url[-1] in '=/' else '/') + name for url in urls], path)
        if not failures:
            return path
        reason = "%s could not be fetched. %s. Try again later, or put the file into %s." % (
            filename, failures, os.path.dirname(path))
        if build_option('fetch_all', default=False):  # EasyBuild 5.1 does not have it
            print_warning(reason)
            return None
        raise EasyBuildError(reason)

    def checksum_step(self):
        """Stop at files without a checksum: a mirror could send anything, which is then unpacked."""
        if not self.dry_run and len(self.cfg['checksums']) < len(self.src):
            raise EasyBuildError("%s: 'checksums' has fewer entries than the data set has files. Run "
                                 "`eb --inject-checksums --force` on it, and compare with the publisher's checksums.",
                                 self.cfg.path)
        super().checksum_step()

    def post_processing_step(self):
        """Keep plain files if the recipe says so; EasyBuild before 5.4 replaces all by links to its object storage."""
        knows = 'object_storage_ignore_dirs' in Dataset.extra_options()
        if knows or '.' not in self.cfg['object_storage_ignore_dirs']:
            super().post_processing_step()
        else:
            EasyBlock.post_processing_step(self)
