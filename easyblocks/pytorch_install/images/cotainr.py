# SPDX-License-Identifier: GPL-2.0-only
"""
Images that cotainr makes from a base image and a conda environment file, a source that ends in .yml.
"""
import os

from easybuild.easyblocks.generic.containerimage import checksum_of, last_line, pinned, run_command, runtime_variables
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import which

from pytorch_install.images.kinds import BuiltImage
from pytorch_install.images.sandbox import Sandbox


class Cotainr(BuiltImage):
    """A conda environment file, put on top of `base_image`."""

    base_checksum = ''

    def __init__(self, recipe, name, sources, builddir):
        super().__init__(recipe, name, sources, builddir)
        base = recipe['base_image']
        if not base:
            raise EasyBuildError("%s has a conda environment file in 'sources', which needs 'base_image'. Set it",
                                 os.path.basename(recipe.path))
        if '://' in base:
            pinned(base, 'base_image')
        else:
            self.wanted = base

    @property
    def reference(self):
        """The environment file and the base image."""
        return '%s on %s' % (super().reference, self.recipe['base_image'])

    @property
    def identity(self):
        """Sources, parameters, and a base image that is a file."""
        return ' '.join([super().identity, self.base_checksum])

    def fetch(self):
        """Identify a base image that is a file; cotainr downloads the packages when it builds."""
        self.base_checksum = checksum_of(self.site_file) if self.wanted else ''

    def build(self):
        """Let cotainr build, then pack with the layout of all images that are built here."""
        if not which('cotainr'):
            raise EasyBuildError("cotainr not found on PATH: it builds the image. Load its module or install it")
        if not which('singularity'):
            raise EasyBuildError("singularity not found on PATH: cotainr runs it. Create a link of that name to "
                                 "apptainer on PATH")
        base = self.site_file or 'docker://%s@%s' % pinned(self.recipe['base_image'], 'base_image')
        result = run_command(['cotainr', 'build', self.file, '--base-image=' + base,
                              '--conda-env=' + self.source('.yml')['path'], '--accept-licenses'],
                             variables=runtime_variables(MKSQUASHFS_ARGS=self.recipe['mksquashfs_args']),
                             work_dir=self.builddir, fail_on_error=False, stream_output=True)
        if result.exit_code != 0:
            raise EasyBuildError("cotainr could not build the image: %s. It needs a network; the full output is in "
                                 "EasyBuild's log", last_line(result.output))
        sandbox = Sandbox(self.runtime, self.builddir, self.recipe['conda_activation'])
        sandbox.unpack(self.file)
        os.remove(self.file)
        sandbox.pack(self.file, self.recipe['mksquashfs_args'])
