# SPDX-License-Identifier: GPL-2.0-only
"""
Images that `apptainer build` makes from a definition file, a source that ends in .def.
"""
import os

from easybuild.tools.filetools import read_file, write_file

from pytorch_install.images.base import verify_base
from pytorch_install.images.container_runtime import runtime_variables
from pytorch_install.images.debian import make_base
from pytorch_install.images.layout import with_layout
from pytorch_install.images.source import ImageSource
from pytorch_install.runtime import run_command
from pytorch_install.sources.recipe_sources import source_with_extension


class Definition(ImageSource):
    """A definition file; its build arguments are BASE and REQUIREMENTS."""

    def build(self, image):
        """Build, on an installed image or a Debian base if the recipe has one, with the locked wheels bound."""
        spec = self.spec
        options = ['--fakeroot']
        if spec.base:
            verify_base(spec.base)
            options.extend(['--build-arg', 'BASE=' + spec.base.image])
        elif spec.debian_release:
            base = make_base(spec.debian_release, spec.debian_packages, spec.builddir)
            options.extend(['--build-arg', 'BASE=' + base])
        if spec.wheels:
            directory, requirements = os.path.split(spec.wheels.requirements)
            # /mnt and /media exist in every Linux image, and are empty
            options.extend(['--build-arg', 'REQUIREMENTS=' + requirements,
                            '--bind', '%s:/mnt,%s:/media' % (spec.wheels.directory, directory)])
        definition = source_with_extension(spec.sources, '.def', spec.easyconfig)
        completed = os.path.join(spec.builddir, definition.name)
        write_file(completed, with_layout(read_file(definition.path)))
        run_command([spec.runtime, 'build', *options, image.file, completed], work_dir=spec.builddir,
                    variables=runtime_variables(MKSQUASHFS_ARGS=spec.mksquashfs_args))
