# SPDX-License-Identifier: GPL-2.0-only
"""
EasyBuild support for PyTorch in a squashfs image for the Container Engine of CSCS (`srun --environment`).

The image is imported as for enroot, on which the Container Engine is based; an environment definition file (EDF) beside
it names its mounts and the site's hooks. Its entries: https://docs.cscs.ch/software/container-engine/edf
"""
import json
import os

from easybuild.easyblocks.pytorchenroot import EB_PyTorchEnroot, EnrootImage
from easybuild.framework.easyconfig import CUSTOM
from easybuild.tools.config import install_path
from easybuild.tools.filetools import mkdir, write_file

from pytorch_install import interface, tree


class EB_PyTorchContainerEngine(EB_PyTorchEnroot):
    """Support for installing a squashfs image, its environment definition file, and a module around them."""

    ENGINE = 'container-engine'
    PARAMETERS = {
        'binds': [[], "Paths of the host to mount, if they exist during the installation", CUSTOM],
        'edf': [{}, "More entries of the environment definition file, such as annotations", CUSTOM],
    }

    @property
    def edf_path(self):
        return self.image_path[:-len(EnrootImage.EXTENSION)] + '.toml'

    def require_start(self):
        """Write the environment definition file first."""
        # a data set that is installed later must be visible too
        mkdir(install_path('data'), parents=True)
        paths = [install_path('software'), install_path('data'), *self.cfg['binds']]
        parts = ['%s:/%s' % (os.path.join(self.installdir, part), part) for part in tree.PARTS]
        mounts = [path if ':' in path else '%s:%s' % (path, path) for path in paths
                  if os.path.exists(path.partition(':')[0])]
        # runscripts need no entrypoint; NVIDIA's prints a banner for each rank
        write_file(self.edf_path, toml({
            'image': literal(self.image_path), 'workdir': '${PWD}', 'entrypoint': False,
            'mounts': [*map(literal, parts + mounts), '${HOME}:${HOME}', '${PWD}:${PWD}'], **self.cfg['edf']}))
        super().require_start()

    def enter_image(self):
        return ['srun', '--nodes=1', '--ntasks=1', '--environment=' + self.edf_path]

    def values_without_module(self):
        return {**super().values_without_module(), 'image': self.edf_path}

    def view_of_host(self):
        """The statement that names the environment definition file, which has the mounts."""
        return interface.installed(self.module_generator, 'PYTORCH_EDF', os.path.basename(self.edf_path))


def literal(path):
    """A path in which the Container Engine expands no variable."""
    return path.replace('$', '$$')


def toml(entries):
    """Text of an EDF; keys of annotations have dots, which nest."""
    return ''.join('%s = %s\n' % (name, written(value)) for name, value in entries.items())


def written(value):
    """A value as TOML; its texts, lists and booleans are those of JSON (https://toml.io/en/v1.0.0)."""
    if isinstance(value, dict):
        return '{%s}' % ', '.join('%s = %s' % (name, written(item)) for name, item in value.items())
    if isinstance(value, list):
        return '[\n%s]' % ''.join('    %s,\n' % written(item) for item in value)
    return json.dumps(value, ensure_ascii=False)
