# SPDX-License-Identifier: GPL-2.0-only
"""
EasyBuild support for PyTorch in a squashfs image for the Container Engine of CSCS (`srun --environment`).

The image is imported as for enroot, on which the Container Engine is based; an environment definition file beside it
names its mounts and the site's hooks.
"""
import os

from easybuild.easyblocks.pytorchenroot import EB_PyTorchEnroot
from easybuild.framework.easyconfig import CUSTOM
from easybuild.tools.config import install_path
from easybuild.tools.filetools import mkdir, write_file

from pytorch_install import tree
from pytorch_install.images import edf
from pytorch_install.images.kinds import EnrootImage


class EB_PyTorchContainerEngine(EB_PyTorchEnroot):
    """Support for installing a squashfs image, its environment definition file, and a module around them."""

    ENGINE, PRODUCT = 'container-engine', 'The Container Engine'
    NO_START = "Run `eb` on a system of CSCS, in a job or with SLURM_ACCOUNT set"

    PARAMETERS = {
        'binds': [[], "Paths of the host to mount, if they exist during the installation", CUSTOM],
        'edf': [{}, "More entries of the environment definition file, such as annotations", CUSTOM],
    }

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        edf.check_entries(self.cfg['edf'], os.path.basename(self.cfg.path))

    @property
    def edf_path(self):
        return self.image_path[:-len(EnrootImage.EXTENSION)] + '.toml'

    def require_start(self):
        """Write the environment definition file first."""
        # a data set that is installed later must be visible too
        mkdir(install_path('data'), parents=True)
        write_file(self.edf_path, edf.toml(self.edf_entries()))
        super().require_start()

    def edf_entries(self):
        paths = [install_path('software'), install_path('data'), *self.cfg['binds']]
        parts = ['%s:/%s' % (os.path.join(self.installdir, part), part) for part in tree.PARTS]
        mounts = [path if ':' in path else '%s:%s' % (path, path) for path in paths
                  if os.path.exists(path.partition(':')[0])]
        # runscripts need no entrypoint; NVIDIA's prints a banner for each rank
        return {'image': edf.literal(self.image_path), 'workdir': '${PWD}', 'entrypoint': False,
                'mounts': [*map(edf.literal, parts + mounts), '${HOME}:${HOME}', '${PWD}:${PWD}'], **self.cfg['edf']}

    def enter_image(self):
        return ['srun', '--nodes=1', '--ntasks=1', '--environment=' + self.edf_path]

    def values_without_module(self):
        return {**super().values_without_module(), 'image': self.edf_path}

    def view_of_host(self):
        """The statement that names the environment definition file, which has the mounts."""
        return self.installed_file('PYTORCH_EDF', self.edf_path)
