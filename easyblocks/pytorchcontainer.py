##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
EasyBuild support for PyTorch in an Apptainer or Singularity image (SIF).

The image is a source that ends in .sif, or is built from one that ends in .def (definition file) or .yml (conda
environment for cotainr), or is what `image` names: a registry's image, or a file that the site provides.
"""
import os
import re

from easybuild.easyblocks.pytorchmodule import COMMANDS, EB_PyTorchModule
from easybuild.framework.easyconfig import CUSTOM
from easybuild.tools.build_log import EasyBuildError, print_msg, print_warning
from easybuild.tools.config import build_option, install_path, source_paths
from easybuild.tools.filetools import which
from easybuild.tools.utilities import shell_quote

from pytorch_install.images.imagefile import activated, checksum_of, read_note
from pytorch_install.images.provenance import write_provenance
from pytorch_install.images.sources import image_source
from pytorch_install.installation import keep_file
from pytorch_install.modulefiles.text import template
from pytorch_install.runtime_commands import versioned_commands
from pytorch_install.user_software import UserSoftware

RUNTIMES = ['singularity', 'apptainer']

# Variables that name a file of the host's by which pip and other programs reach an index or a server, with the
# certificates of a private authority for example: the image may lack it, or have another one under its path.
CONNECTION_FILES = ['PIP_CERT', 'PIP_CLIENT_CERT', 'PIP_CONFIG_FILE', 'SSL_CERT_FILE', 'REQUESTS_CA_BUNDLE',
                    'CURL_CA_BUNDLE', 'GIT_SSL_CAINFO', 'AWS_CA_BUNDLE']


class EB_PyTorchContainer(EB_PyTorchModule):
    """Support for installing PyTorch as a container image with a module around it."""

    RUNTIME = 'image for Apptainer or Singularity'
    PACKAGES = {'pip install <name>': 'into $CONTAINERROOT/user-software, /user-software in the image',
                'pip install --user <name>': 'into $PYTHONUSERBASE, where that is not yours to write',
                'pip uninstall <name>': 'removes it from either'}

    HOST_COMMANDS = [*EB_PyTorchModule.HOST_COMMANDS, 'check-image', 'make-squashfs', 'unmake-squashfs']
    HELPERS = [*EB_PyTorchModule.HELPERS, 'enter-image', 'enter.bash', 'user-software.bash', 'clean-user-software.bash',
               'image.bash', 'compare-trees.py']

    @staticmethod
    def extra_options(extra_vars=None):
        """Easyconfig parameters of images."""
        extra_vars = EB_PyTorchModule.extra_options(extra_vars)
        extra_vars.update({
            'image': [None, "Image that is no source: docker://, oras:// or library:// with its digest, or a .sif file "
                            "in central_images", CUSTOM],
            'image_checksum': [None, "SHA-256 of that .sif file; without it, that of the first installation", CUSTOM],
            'central_images': [[], "Site's directories with images, found there under their file names", CUSTOM],
            'base_image': [None, "What cotainr puts the conda environment on: a .sif file, or as docker:// with digest",
                           CUSTOM],
            'signing_key': [None, "File name of the source (.pem, .asc) with the key that the image is signed with",
                            CUSTOM],
            'binds': [[], "Paths of the host that the image sees too, if they exist when the module is loaded", CUSTOM],
            'conda_activation': ['true', "Command that activates the image's conda environment, if the image's own "
                                         "WITH_CONDA does not say it", CUSTOM],
            'debian_release': [None, "Debian release to make the definition file's base image from", CUSTOM],
            'debian_packages': [[], "Debian packages in that base image", CUSTOM],
            'commands': [['python', 'python3', 'pip', 'pip3', 'torchrun'],
                         "Commands of the image that bin/ offers on the host", CUSTOM],
            # every start decompresses what it reads: the default gzip packs a third smaller, and is read slowest;
            # fragments are small files packed together, whose table pushes directories out of the kernel's cache
            'mksquashfs_args': ['-comp lz4 -no-fragments', "Packing of an image built here", CUSTOM],
        })
        return extra_vars

    def __init__(self, *args, **kwargs):
        """Find out where the image comes from."""
        super().__init__(*args, **kwargs)
        self.image = image_source(self)
        self.kept = None
        self.user_software = UserSoftware(self.installdir)
        self.mounted = self.user_software.directory
        self.installation.disposable.append(self.user_software.part)
        self.installation.keeps_replaced = True

    def checksum_step(self):
        """Verify the sources, then fetch what else the image is made from."""
        super().checksum_step()
        if self.dry_run or build_option('module_only'):
            return
        # a digest in the recipe tells without a download whether the image is the one that is installed
        if not (self.image.digest and self.keeps_image):
            self.image.fetch()

    def obtain_file(self, filename, **kwargs):
        """Find images in the site's directories first, without copying them to the source path."""
        for directory in self.cfg['central_images'] if filename.endswith('.sif') else []:
            path = os.path.join(directory, filename)
            if os.path.isfile(path):
                return path
        return super().obtain_file(filename, **kwargs)

    def find_image(self, name):
        """Path of an image that is no source, from its file name or an absolute path."""
        path = self.obtain_file(name, no_download=True, warning_only=True) if name == os.path.basename(name) else name
        if not path or not os.path.isfile(path):
            raise EasyBuildError("There is no image %s in central_images (%s) nor on EasyBuild's source path (%s); put "
                                 "a copy there, or correct the recipe", name, ', '.join(self.cfg['central_images']),
                                 ', '.join(source_paths()))
        return path

    @property
    def keeps_image(self):
        """Whether the image of the installation before this one stays; found out once, as it takes a while."""
        if self.kept is None:
            self.kept = not build_option('force') and self.has_image()
        return self.kept

    def has_image(self):
        """Whether the installation before this one has the image that the recipe means, undamaged."""
        image = self.installation.before(self.image.name)
        identity, key, checksum = read_note(self.installation.before(os.path.join('provenance', 'image.json')),
                                            'identity', 'signing_key', 'sha256')
        if not os.path.isfile(image) or (identity, key) != (self.image.identity, self.cfg['signing_key']):
            return False
        if checksum_of(image) != checksum:
            print_warning("%s is damaged, its SHA-256 is not that of its installation: installing it anew", image)
            return False
        self.image.checksum = checksum
        print_msg("image %s: the installed one is the same, it is kept" % self.image.reference)
        return True

    @property
    def signing_key(self):
        """Path of the public key that the image is signed with, or None."""
        name = self.cfg['signing_key']
        return next(source['path'] for source in self.src if source['name'] == name) if name else None

    def configure_step(self):
        """Check for a container runtime before the long steps."""
        self.require_runtime()

    def require_runtime(self):
        """Stop where no container runtime is."""
        if not self.runtime:
            raise EasyBuildError("Neither %s is on PATH; install Apptainer or load its module", ' nor '.join(RUNTIMES))

    def launch(self, image='$SIF'):
        """Enter the image with what is there to do that."""
        return '%s exec %s ' % (self.runtime or RUNTIMES[0], image)

    def image_variables(self):
        """The image, and what it sees of the host: Apptainer, often called singularity too, reads its own name."""
        binds = 'APPTAINER_BIND' if which('apptainer') else 'SINGULARITY_BIND'
        return {'$SIF': 'the image',
                '$' + binds: 'directories that the image sees; append yours: export %s=$%s,/data' % (binds, binds)}

    @property
    def runtime(self):
        """The container runtime on this host, None if there is none."""
        return next((runtime for runtime in RUNTIMES if which(runtime)), None)

    def build_step(self):
        """Build the image, unless its source is one or the one that is installed is the same."""
        if not self.keeps_image:
            self.image.build()

    def install_runtime(self):
        """Install the image, and what is known about it beside it."""
        image = os.path.join(self.installdir, self.image.name)
        if self.keeps_image:
            keep_file(self.installation.before(self.image.name), image)
        else:
            self.image.install(image)
        write_provenance(self, image, os.path.join(self.installdir, 'provenance'))

    def install_tree(self):
        """Make the users' virtual environment too, with the image that is installed by now."""
        super().install_tree()
        self.user_software.prepare(self)

    def complete(self):
        """From now on the image is this one, and the users' virtual environment has to fit it."""
        self.user_software.finish(self)
        self.image.installed()

    def runtime_python(self):
        """The image's Python, that of its conda environment if it has one, which sees the installation directory."""
        return ' '.join([self.runtime, 'exec', '--bind', shell_quote(self.installdir),
                         shell_quote(os.path.join(self.installdir, self.image.name)),
                         'bash', '-c', activated(self, '"$0" "$@"'), 'python3'])

    def commands(self):
        """On the host every command enters the image first, but for those that look after it."""
        links = super().commands()
        entering = COMMANDS + self.cfg['commands'] + ['start-shell']
        return {**links, **dict.fromkeys(entering, os.path.join(os.pardir, 'libexec', 'enter-image'))}

    def check_commands(self):
        """Look for the recipe's commands where enter-image does; the users' virtual environment brings two of them."""
        image = shell_quote(os.path.join(self.installdir, self.image.name))
        self.leave_out_absent('%s exec %s' % (self.runtime, image),
                              [name for name in self.cfg['commands'] if not re.fullmatch(r'(python|pip)[0-9.]*', name)])
        commands = self.cfg['commands']
        self.cfg['commands'] = commands + versioned_commands(self.runtime_python(), commands)

    def make_module_step(self, fake=False):
        """Let the sanity check's module mount the environment that is not in its place yet."""
        prepared = fake and os.path.isdir(self.user_software.part)
        self.mounted = self.user_software.part if prepared else self.user_software.directory
        return super().make_module_step(fake=fake)

    def make_module_extra(self, *args, **kwargs):
        """Add the image, what it sees of the host, and its search path."""
        txt = super().make_module_extra(*args, **kwargs)
        if self.cfg['gpu'] == 'cuda':
            for variable in ('SINGULARITY_NV', 'APPTAINER_NV'):
                txt += self.module_generator.set_environment(variable, {'value': '1', 'pushenv': True})
        # everything that EasyBuild installed is visible under its own path, data sets included
        moved = [os.path.realpath(self.installdir)] if os.path.islink(self.installdir) else []
        lists = {'central_images': self.cfg['central_images'], 'binds': [*self.cfg['binds'], *moved],
                 'connection_files': CONNECTION_FILES}
        return txt + template(self.module_generator, 'container', lists, image=self.image.name,
                              easyconfig=os.path.basename(self.cfg.path),
                              user_software=self.mounted,
                              software=install_path('software'), data=install_path('data'))

    def activation(self):
        """The image's conda environment; that of the user-software is known when the module is loaded."""
        # the last for scripts that were written for LUMI's modules, which run it in the image
        return {'WITH_CONDA': self.cfg['conda_activation'], 'WITH_CONDA_VENV': 'source /runscripts/init-conda-venv'}
