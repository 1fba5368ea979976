# SPDX-License-Identifier: GPL-2.0-only
"""
EasyBuild support for PyTorch in a squashfs image for the Container Engine of CSCS (`srun --environment`).

The image is imported as for enroot, on which the Container Engine is based; an environment definition file (EDF) beside
it names its mounts and the site's hooks. Its entries: https://docs.cscs.ch/software/container-engine/edf
"""
import json
import os

from easybuild.easyblocks.pytorchenroot import EB_PyTorchEnroot
from easybuild.tools.config import install_path
from easybuild.tools.filetools import mkdir, write_file

from pytorch_install import tree


class EB_PyTorchContainerEngine(EB_PyTorchEnroot):
    """Support for installing a squashfs image, its environment definition file, and a module around them."""

    ENGINE = 'container-engine'
    PARAMETERS = ('edf',)

    @property
    def started(self):
        """Path of the environment definition file."""
        return os.path.splitext(self.image_path)[0] + '.toml'

    def require_start(self):
        """Write the environment definition file first; keys of annotations have dots, which nest."""
        # a data set that is installed later must be visible too
        mkdir(install_path('data'), parents=True)
        mounts = ['%s:/%s' % (os.path.join(self.installdir, part), part) for part in tree.PARTS]
        for path in (install_path('software'), install_path('data'), *self.cfg['binds']):
            if os.path.exists(path.partition(':')[0]):
                mounts.append((path if ':' in path else '%s:%s' % (path, path)).replace('$', '$$'))  # not a variable
        # runscripts need no entrypoint; NVIDIA's prints a banner for each rank
        entries = {'image': self.image_path, 'workdir': '${PWD}', 'entrypoint': False,
                   'mounts': [*mounts, '${HOME}:${HOME}', '${PWD}:${PWD}'], **self.cfg['edf']}
        write_file(self.started, ''.join('%s = %s\n' % (name, toml(value)) for name, value in entries.items()))
        super().require_start()


def toml(value):
    """A value as TOML; its texts, lists and booleans are those of JSON (https://toml.io/en/v1.0.0)."""
    if isinstance(value, dict):
        return '{%s}' % ', '.join('%s = %s' % (name, toml(item)) for name, item in value.items())
    return json.dumps(value, ensure_ascii=False)
