# SPDX-License-Identifier: GPL-2.0-only
"""
EasyBuild support for PyTorch in a virtual environment, installed offline from locked wheels.

Packages that have to be built on the site are built from sdists among the recipe's sources.
"""
import os
import shlex

from easybuild.easyblocks.generic.containerimage import run_command
from easybuild.easyblocks.generic.lockedvenv import LockedVenv, compile_packages, make_environment
from easybuild.easyblocks.pytorchmodule import EB_PyTorchModule
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import build_option
from easybuild.tools.filetools import compute_checksum, which, write_file

from pytorch_install import build_environment, interface
from pytorch_install.python_base import make_base, require_readable
from pytorch_install.runtime import install_site_files, read_json, write_json
from pytorch_install.source_packages import SourcePackageSteps

# The packed file, the record of its SHA-256 for runscripts/pytorch_stage.py, and a file at the root of the packed one,
# by which the commands recognize the mount (runscripts/packed.bash).
PACKED = 'venv.squashfs'
RECORD = os.path.join('provenance', 'packed.json')
MARKER = '.packed'


class EB_PyTorchVenv(SourcePackageSteps, EB_PyTorchModule, LockedVenv):
    """Support for installing PyTorch as a Python environment."""

    IN_PLACE = True

    PARAMETERS = ('mksquashfs_args', 'packed')

    def __init__(self, *args, **kwargs):
        """Leave PATH to the template: commands.lua and commands.tcl set it, in their order."""
        super().__init__(*args, **kwargs)
        self.module_load_environment.remove('PATH')
        self.ENGINE = 'packed' if self.cfg['packed'] else ''

    @property
    def image_commands(self):
        """Commands that run where the packed venv is mounted."""
        versions = ('', '3', self.cfg['python_version']) if self.cfg['packed'] else ()
        return [name + version for name in ('python', 'pip') for version in versions]

    def configure_step(self):
        """Check for jobs that use the installation, and for the locked Python."""
        name = os.path.basename(self.cfg.path)
        if self.installation.is_restored and not build_option('force'):
            raise EasyBuildError("%s is as it was before an `eb` that was killed. To install it again, run "
                                 "`eb --force %s` when no job uses it", self.full_mod_name, name)
        if self.installation.has_module and not build_option('force'):
            raise EasyBuildError("%s is installed, and a rebuild removes files that running jobs import. If no job "
                                 "uses it, run `eb --force %s`; to keep both, install it with another 'versionsuffix'",
                                 self.full_mod_name, name)
        super().configure_step()
        require_readable(self.host_python, self.installdir)
        if self.cfg['packed'] and not which('mksquashfs'):
            raise EasyBuildError("mksquashfs not found on PATH, and the recipe has packed = True. Install or load "
                                 "squashfs-tools, or remove the parameter")

    def build_step(self):
        """Build the source packages in order, in an environment with the locked wheels."""
        if not self.source_packages:
            return
        venv = os.path.join(self.builddir, 'venv')
        # without the host's packages, whose versions may differ on the next host
        make_environment(self.host_python, venv, self.wheels)
        python = os.path.join(venv, 'bin', 'python')
        for package in self.source_packages:
            variables = package.variables_of_build(self.cfg.parallel)
            # locked tools precede those of the host, which may have a CMake that is too new for a package
            path = variables.get('PATH', os.environ['PATH'])
            variables.update(PYTHONPATH=None, PATH=os.path.dirname(python) + os.pathsep + path)
            package.build(self.unpacked(package)['finalpath'], [python], self.built_wheels, variables)
            package.install(python, self.built_wheels)

    def install_runtime(self):
        """Make the environment with wheels and source packages, and write the record of the build."""
        make_environment(self.host_python, self.environment, self.wheels)
        for package in self.source_packages:
            package.install(*self.runtime_python(), self.built_wheels)
        compile_packages(self.environment)
        make_base(self.host_python, self.environment)
        install_site_files(os.path.join(self.environment, 'lib', 'python' + self.cfg['python_version']))
        write_json(os.path.join(self.installdir, build_environment.RECORD), self.record_of_build())

    def install_tree(self):
        """Record the module's variables, for commands that run by their path without them."""
        super().install_tree()
        variables = self.activation()
        if self.cfg['packed']:
            variables['PYTORCH_PACKED'] = os.path.join(self.installdir, PACKED)
        write_file(os.path.join(self.installdir, interface.RECORDED), interface.recorded_variables(
            self.installdir, self.name, self.full_version, variables))

    def install_step(self):
        """Pack the installation last."""
        super().install_step()
        if self.cfg['packed']:
            pack(self.installdir, self.cfg['mksquashfs_args'], self.cfg.parallel)

    def record_of_build(self):
        """Python and modules of the installation, which --module-only keeps; before there is one, of this build."""
        record = read_json(os.path.join(self.installdir, build_environment.RECORD))
        if record:
            return record
        dependencies = {False: [], True: []}
        for dependency in self.toolchain.dependencies:
            dependencies[dependency['build_only']].append(dependency['full_mod_name'])
        return build_environment.record_build(self.host_python, build_environment.modules_of_build(
            self.name, self.initial_environ, os.environ, dependencies[False], dependencies[True]))

    def runtime_python(self):
        """The environment's Python."""
        return [os.path.join(self.environment, 'bin', 'python')]

    def activation(self):
        """The environment's script."""
        activate = os.path.join(self.environment, 'bin', 'activate')
        return {'WITH_CONDA': 'true', 'WITH_VENV': 'source ' + activate}

    def make_module_extra(self, *args, **kwargs):
        """Add the packed file, the names of EasyBuild's own Python module, and search paths."""
        generator = self.module_generator
        txt = super().make_module_extra(*args, **kwargs) + self.shared_statements()
        if self.cfg['packed']:
            txt += interface.installed(generator, 'PYTORCH_PACKED', PACKED)
        txt += interface.template(generator, 'python', version=self.record_of_build()['python']['version'])
        lists = {'directories': ['venv/bin', 'bin']}
        return txt + interface.template(generator, 'commands', lists, users='bin', more='')

    def make_module_dep(self, unload_info=None):  # noqa: ARG002 (EasyBuild's signature)
        """Load exactly the modules of the build, and check that its Python still exists."""
        record, generator = self.record_of_build(), self.module_generator
        txt = ''
        for module in [*record['modules']['required'], *record['modules']['brought']]:
            txt += generator.load_module(module, recursive_unload=True)
        python = record['python']
        return txt + interface.template(generator, 'venv', module=self.full_mod_name,
                                        easyconfig=os.path.basename(self.cfg.path),
                                        minor='.'.join(python['version'].split('.')[:2]),
                                        python=python['path'], version=python['version'])


def pack(installdir, mksquashfs_args, parallel):
    """Pack an installation into a file in it with a number of cores, and record the file's SHA-256."""
    path = os.path.join(installdir, PACKED)
    part = path + '.part'
    run_command(['mksquashfs', installdir, part, '-noappend', '-no-progress', '-no-xattrs', '-all-root',
                 '-processors', str(parallel or 1), *shlex.split(mksquashfs_args),
                 '-p', MARKER + ' f 444 0 0 true', '-e', PACKED, os.path.basename(part)], hidden=True)
    write_json(os.path.join(installdir, RECORD),
               {'file': PACKED, 'sha256': compute_checksum(part), 'size': os.path.getsize(part)})
    os.replace(part, path)
