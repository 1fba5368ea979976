##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
EasyBuild support for PyTorch in an Apptainer or Singularity image (SIF).

The image is a source that ends in .sif, or is built from a definition file, a source that ends in .def.
"""
import os

from easybuild.easyblocks.pytorchmodule import EB_PyTorchModule
from easybuild.framework.easyconfig import CUSTOM
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import install_path
from easybuild.tools.filetools import copy_file, mkdir, read_file, which, write_file
from easybuild.tools.run import run_shell_cmd
from easybuild.tools.utilities import shell_quote

RUNTIMES = ['singularity', 'apptainer']


class EB_PyTorchContainer(EB_PyTorchModule):
    """Support for installing PyTorch as a container image with a module around it."""

    LAUNCH = 'singularity exec {image} '

    @staticmethod
    def extra_options(extra_vars=None):
        """Easyconfig parameters of images."""
        extra_vars = EB_PyTorchModule.extra_options(extra_vars)
        extra_vars.update({
            'central_image': [None, "Site's own copy of the image, used when the installed one is removed", CUSTOM],
            'debian_release': [None, "Debian release to make the definition file's base image from", CUSTOM],
            'debian_packages': [[], "Debian packages in that base image", CUSTOM],
            'gpu': [None, "GPU kind that the image is for: 'cuda', 'rocm' or None", CUSTOM],
            'image_commands': [['python', 'python3', 'pip', 'torchrun', 'start-shell'],
                               "Commands of the image that bin/ offers on the host", CUSTOM],
            # level 3: an import costs 1.4 times the host's, against 1.95 with the default gzip
            'mksquashfs_args': ['-comp zstd -Xcompression-level 3', "Compression of an image built here", CUSTOM],
        })
        return extra_vars

    @property
    def image_name(self):
        """File name of the installed image."""
        return '%s-%s.sif' % (self.name, self.full_version())

    def configure_step(self):
        """Check for a container runtime and for exactly one image source."""
        if not any(which(runtime) for runtime in RUNTIMES):
            raise EasyBuildError("Neither %s is on PATH; install Apptainer or load its module", ' nor '.join(RUNTIMES))
        given = [extension for extension in ('.sif', '.def') if self.source_with_extension(extension)]
        if len(given) != 1:
            raise EasyBuildError("%s must name one image source in 'sources', a .sif or a .def file; found: %s",
                                 self.cfg.path, ', '.join(given) or 'none')

    @property
    def runtime(self):
        """The container runtime on this host."""
        return next(runtime for runtime in RUNTIMES if which(runtime))

    def build_step(self):
        """Build the image from its definition file, if that is its source."""
        definition = self.source_with_extension('.def')
        if not definition:
            return
        options = ['--fakeroot', '--mksquashfs-args', shell_quote(self.cfg['mksquashfs_args'])]
        if self.cfg['debian_release']:
            options.extend(['--build-arg', 'BASE=' + shell_quote(self.make_base())])
        if self.lock:
            # two empty directories that every Linux image has
            options.extend(['--build-arg', 'REQUIREMENTS=' + shell_quote(os.path.basename(self.lock)),
                            '--bind', shell_quote('%s:/mnt,%s:/media' % (self.wheels, os.path.dirname(self.lock)))])
        run_shell_cmd('%s build %s %s %s' % (self.runtime, ' '.join(options),
                                             shell_quote(os.path.join(self.builddir, self.image_name)),
                                             shell_quote(definition)), work_dir=self.builddir)

    def make_base(self):
        """Make the base image as a directory from the distribution's packages; return its path."""
        if not which('mmdebstrap'):
            raise EasyBuildError("mmdebstrap is not on PATH, and the base image is made with it: install that package")
        base, archive = os.path.join(self.builddir, 'base'), os.path.join(self.builddir, 'base.tar')
        arguments = ['--variant=minbase', '--include=' + ','.join(self.cfg['debian_packages']),
                     self.cfg['debian_release'], shell_quote(archive)]
        sources = self.host_archives()
        if sources:
            listing = os.path.join(self.builddir, 'sources.list')
            write_file(listing, '\n'.join(sources) + '\n')
            arguments.append(shell_quote(listing))
        # an ordinary user's mmdebstrap works under subordinate ids, which EasyBuild's private TMPDIR shuts out
        run_shell_cmd('env --unset=TMPDIR mmdebstrap ' + ' '.join(arguments), work_dir=self.builddir)
        mkdir(base)
        # owned by this user and without device files, which an ordinary user may not make
        run_shell_cmd("tar --extract --no-same-owner --exclude './dev/*' --file %s --directory %s"
                      % (shell_quote(archive), shell_quote(base)))
        return base

    def host_archives(self):
        """This host's own archives of the release as apt source lines; empty if it runs another release."""
        release = self.cfg['debian_release']
        suites = [release, release + '-updates', release + '-security']
        result = run_shell_cmd("apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' "
                               "'Created-By: Packages'", fail_on_error=False, hidden=True)
        targets = [line.split() for line in result.output.splitlines()] if result.exit_code == 0 else []
        return ['deb %s' % ' '.join(target) for target in targets
                if len(target) == 3 and target[1] in suites and target[2] == 'main']

    def install_runtime(self):
        """Install the image, given or built."""
        given = self.source_with_extension('.sif') or os.path.join(self.builddir, self.image_name)
        copy_file(given, os.path.join(self.installdir, self.image_name))

    def runtime_python(self):
        """The image's Python, which sees the installation directory."""
        return ' '.join([self.runtime, 'exec', '--bind', shell_quote(self.installdir),
                         shell_quote(os.path.join(self.installdir, self.image_name)), 'python3'])

    def commands(self):
        """On the host every command enters the image first."""
        names = list(super().commands()) + self.cfg['image_commands']
        return dict.fromkeys(names, 'enter-image')

    def make_module_extra(self, *args, **kwargs):
        """Add the image, what it sees of the host, and its search path."""
        txt = super().make_module_extra(*args, **kwargs)
        if self.cfg['gpu'] == 'cuda':
            for variable in ('SINGULARITY_NV', 'APPTAINER_NV'):
                txt += self.module_generator.set_environment(variable, {'value': '1', 'pushenv': True})
        # everything that EasyBuild installed is visible under its own path, data sets included
        template = os.path.splitext(os.path.realpath(__file__))[0] + '.' + self.module_generator.SYNTAX.lower()
        return txt + read_file(template) % {
            'image': self.image_name,
            'central_image': self.cfg['central_image'] or '',
            'easyconfig': os.path.basename(self.cfg.path),
            'software': install_path('software'),
            'data': install_path('data'),
        }
