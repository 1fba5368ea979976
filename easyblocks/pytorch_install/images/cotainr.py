##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Images that cotainr makes from a base image and a conda environment file; called by sources.py.
"""
import os

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import which
from easybuild.tools.run import run_shell_cmd
from easybuild.tools.utilities import shell_quote

from pytorch_install.images.imagefile import ImageSource, checksum_of, runtime_command
from pytorch_install.images.registry import TRANSPORTS, pinned
from pytorch_install.output import last_line


class Cotainr(ImageSource):
    """A conda environment file, a source that ends in .yml, put on top of `base_image`."""

    def __init__(self, block):
        super().__init__(block)
        base = block.cfg['base_image']
        if not base:
            raise EasyBuildError("%s has a conda environment file in 'sources', which needs a 'base_image'",
                                 os.path.basename(block.cfg.path))
        self.base_checksum = None
        self.registry = base.partition('://')[0] in TRANSPORTS
        if self.registry:
            self.base = pinned(base, 'base_image').uri
        self.reference = '%s on %s' % (self.reference, base)

    @property
    def identity(self):
        """The environment file and the base image."""
        return ' '.join([super().identity, self.base_checksum or ''])

    def fetch(self):
        """Find a base image that is a file; the packages come while cotainr builds."""
        if not self.registry:
            self.base = self.block.find_image(self.block.cfg['base_image'])
            self.base_checksum = checksum_of(self.base)

    def build(self):
        """Let cotainr build, with the compression of every image that is built here."""
        if not which('cotainr'):
            raise EasyBuildError("cotainr is not on PATH, and the image is made with it: load its module or install it")
        if not which('singularity'):
            raise EasyBuildError("cotainr starts a command named singularity, which is not on PATH: put a link of that "
                                 "name to apptainer there")
        command = ' '.join([
            'cotainr', 'build', shell_quote(self.file), '--base-image=' + shell_quote(self.base),
            '--conda-env=' + shell_quote(self.block.source_with_extension('.yml')), '--accept-licenses',
        ])
        result = run_shell_cmd(runtime_command(command, MKSQUASHFS_ARGS=self.block.cfg['mksquashfs_args']),
                               work_dir=self.block.builddir, fail_on_error=False, stream_output=True)
        if result.exit_code != 0:
            raise EasyBuildError("cotainr could not make the image: %s; it needs the network where it builds, and its "
                                 "whole output is in EasyBuild's log", last_line(result.output))
