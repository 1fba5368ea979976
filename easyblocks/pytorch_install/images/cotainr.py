# SPDX-License-Identifier: GPL-2.0-only
"""
Images that cotainr makes from a base image and a conda environment file, a source that ends in .yml.
"""
import os

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import which

from pytorch_install.images.container_runtime import runtime_variables
from pytorch_install.images.image_files import checksum_of
from pytorch_install.images.registry import pinned
from pytorch_install.images.sandbox import Sandbox
from pytorch_install.images.source import ImageSource
from pytorch_install.runtime import last_line, run_command
from pytorch_install.sources.recipe_sources import source_with_extension


class Cotainr(ImageSource):
    """A conda environment file, put on top of `base_image`."""

    def __init__(self, spec):
        super().__init__(spec)
        base = spec.base_image
        if not base:
            raise EasyBuildError("%s has a conda environment file in 'sources', which needs 'base_image'. Set it",
                                 os.path.basename(spec.easyconfig))
        if '://' in base:
            self.base = pinned(base, 'base_image').uri
        else:
            self.wanted_file = base
            self.base = spec.site_file or base

    @property
    def reference(self):
        """The environment file and the base image."""
        return '%s on %s' % (super().reference, self.spec.base_image)

    def fetch(self):
        """Identify a base image that is a file; cotainr downloads the packages when it builds."""
        checksum = checksum_of(self.base) if self.wanted_file else ''
        return self.expect_image()._replace(identity=' '.join([self.identity, checksum]))

    def build(self, image):
        """Let cotainr build, with the recipe's compression."""
        if not which('cotainr'):
            raise EasyBuildError("cotainr not found on PATH: it builds the image. Load its module or install it")
        if not which('singularity'):
            raise EasyBuildError("singularity not found on PATH: cotainr runs it. Create a link of that name to "
                                 "apptainer on PATH")
        environment = source_with_extension(self.spec.sources, '.yml', self.spec.easyconfig)
        result = run_command(['cotainr', 'build', image.file, '--base-image=' + self.base,
                              '--conda-env=' + environment.path, '--accept-licenses'],
                             variables=runtime_variables(MKSQUASHFS_ARGS=self.spec.mksquashfs_args),
                             work_dir=self.spec.builddir, fail_on_error=False, stream_output=True)
        if result.exit_code != 0:
            raise EasyBuildError("cotainr could not build the image: %s. It needs a network; the full output is in "
                                 "EasyBuild's log", last_line(result.output))
        sandbox = Sandbox(self.spec.runtime, self.spec.builddir, self.spec.conda_activation)
        sandbox.unpack(image.file)
        os.remove(image.file)
        sandbox.pack(image.file, self.spec.mksquashfs_args)
