# SPDX-License-Identifier: GPL-2.0-only
"""
EasyBuild support for PyTorch modules: what containers and virtual environments have in common.

It fetches locked Python wheels, installs runscripts, payload and cluster profile beside the runtime as one transaction,
and writes the part of the module that does not depend on the runtime.
"""
import os
import stat
import sys

from easybuild.framework.easyblock import EasyBlock, StopException
from easybuild.framework.easyconfig import CUSTOM, MANDATORY
from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import build_option
from easybuild.tools.filetools import adjust_permissions, change_dir, remove_file
from easybuild.tools.module_naming_scheme.utilities import det_full_ec_version

# EasyBuild includes easyblocks through symbolic links
sys.path.append(os.path.dirname(os.path.realpath(__file__)))

from pytorch_install import tree  # noqa: E402 (the line before; it checks EasyBuild's version)

# isort: split
from easybuild.easyblocks.generic.containerimage import last_line, run_command  # noqa: E402
from easybuild.easyblocks.generic.lockedvenv import find_lock  # noqa: E402

from pytorch_install import interface, parameters, runtime  # noqa: E402
from pytorch_install.access import check_access  # noqa: E402
from pytorch_install.transaction import Installation  # noqa: E402

# Initializes a process group of one rank from environment variables, as users' scripts do, in the same command as the
# check of torch's version: importing torch is slow. That of 2.3.1 may be 2.3.1+rocm6.0, or 2.1.0a0+b5021ba for 2.1.0.
CHECK = ("import torch, torch.distributed as dist; assert torch.__version__.startswith('%s'), torch.__version__; "
         "dist.init_process_group('gloo'); total = torch.ones(1); dist.all_reduce(total); "
         "dist.destroy_process_group(); assert total.item() == 1.0")


class EB_PyTorchModule(EasyBlock):
    """
    Shared base of the PyTorch easyblocks.

    A subclass provides the runtime: install_runtime puts it into the installation directory, and runtime_python is the
    command (a list) of its Python before the module exists.

    Some methods replace what EasyBuild does not intend to be overridden; their docstrings state what it does instead.
    """

    # Its easyconfig parameters, and those of them that each recipe has to set; each class adds its own.
    PARAMETERS = ('cluster', 'conflicts', 'gpu', 'machines', 'python_version', 'wheel_index')
    REQUIRED = ()

    # Whether running jobs import files of the installation directory, which a rebuild removes.
    IN_PLACE = False

    # What starts the image, or mounts the packed venv, in libexec/enter.
    ENGINE = ''

    # For the module's help: prefix of a command to run it with this module's Python, and lines on its use.
    launch = ''
    notes = ('`pip install --user <name>` installs into $PYTHONUSERBASE',)

    @classmethod
    def extra_options(cls, extra_vars=None):
        """Easyconfig parameters: those of the generic easyblock, and PARAMETERS of all classes."""
        extra_vars = super().extra_options(extra_vars)
        for base in cls.__mro__:
            for name in vars(base).get('PARAMETERS', ()):
                kind = MANDATORY if name in cls.REQUIRED else CUSTOM
                extra_vars[name] = [parameters.EXPECTED[name].default, parameters.EXPECTED[name].words, kind]
        return extra_vars

    def __init__(self, ec, *args, **kwargs):
        """Check the recipe, remove search paths of compilers and linkers from the module, and write its help."""
        parameters.check_recipe(ec)
        if build_option('extended_dry_run'):
            raise EasyBuildError("PyTorch's easyblocks cannot run with --extended-dry-run. Run `eb --dry-run`")
        super().__init__(ec, *args, **kwargs)
        for path in (self.installdir, self.mod_filepath):
            parameters.check_path(path)
        self.installation = Installation(self.installdir, self.mod_filepath, keeps_replaced=not self.IN_PLACE)
        self.module_load_environment.replace({'PATH': ['bin']})
        self.wheels = None
        self.profile = tree.find_profile(self.cfg['cluster'])
        self.full_version = det_full_ec_version(self.cfg)
        self.cfg['usage'] = self.cfg['usage'] or interface.usage(
            '%s/%s' % (self.name, self.full_version), self.launch, self.notes, self.cfg['gpu'],
            self.cfg['wheel_index'])

    @property
    def lock(self):
        """EasyBuild's record of the lock among the sources; None without one."""
        return find_lock(self.src, self.cfg.path)

    @property
    def image_commands(self):
        """Commands of the image that bin/ offers on the host; those of Python and pip also with Python's version."""
        names = self.cfg['commands']
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        version = last_line(run_command([*self.runtime_python(), '-c', code], split_stderr=True, hidden=True).output)
        return [*names, *(name + version for name in ('python', 'pip') if name in names)]

    def post_init(self):
        """
        Check the machine, and clean up after an `eb` that was killed.

        EasyBuild has no step between taking its lock and fetching sources; this method is the only place.
        """
        parameters.check_machine(os.path.basename(self.cfg.path), self.cfg['machines'])
        super().post_init()
        if not build_option('ignore_locks'):
            self.installation.recover()
        check_access(self.installdir, os.path.dirname(self.mod_filepath))

    def run_step(self, step, step_methods):
        """
        Run one step; after an error, Ctrl-C or --stop, installation and module are as they were before.

        EasyBuild installs in place, as most build systems write the final path into files: it has removed the previous
        installation by then, and keeps the incomplete one for debugging; so does --stop, if there was none.
        """
        try:
            super().run_step(step, step_methods)
        except BaseException as error:
            if self.installation.begun and (self.installation.has_module or not isinstance(error, StopException)):
                change_dir(self.orig_workdir)
                self.installation.roll_back()
                print_msg("%s is as it was before: what this run installed is removed", self.full_mod_name)
            raise

    def remove_module_file(self):
        """
        Keep the module that --rebuild replaces until make_installdir.

        EasyBuild removes it in its first step, as the installation directory goes next: during a build of minutes,
        users would find no module. The module of another installation directory is left to EasyBuild.
        """
        present = os.path.exists(self.mod_filepath)
        if present and self.module_generator.det_installdir(self.mod_filepath) != self.installdir:
            super().remove_module_file()

    def make_installdir(self, *args, **kwargs):
        """Put the installed directory aside, where EasyBuild removes it, and make a new one."""
        self.installation.begin()
        super().make_installdir(*args, **kwargs)

    def install_step(self):
        """Install the scripts, which running jobs may start at any moment, then the runtime and everything else."""
        tree.install_parts(self.installdir)
        self.install_runtime()
        self.install_tree()
        runtime.hold_packages(self.runtime_python(), self.installdir, self.cfg['wheel_index'])

    def install_tree(self):
        """Install the cluster profile and the commands in bin/; compile the scripts, as ranks cannot write there."""
        tree.install_profile(self.profile, self.installdir)
        runtime.run_program(self.runtime_python(), 'compile_tree.py', self.installdir)
        tree.install_commands(self.ENGINE, self.image_commands, self.installdir, self.values_without_module())

    def values_without_module(self):
        """Values of libexec/enter for commands that start without the module: texts and lists, by their names."""
        base = interface.user_base(self.name, self.full_version, self.installdir)
        return {'packages': '%(directory)s-%(identity)s' % base,
                'binds': [*interface.places().values(), *self.cfg.get('binds', [])],
                'files': interface.CONNECTION_FILES, 'gpu': self.cfg['gpu']}

    def make_module_extra(self, *args, **kwargs):
        """Add conflicts first; subclasses add `shared_statements`, and the runtime's own after them."""
        generator = self.module_generator
        txt = interface.template(generator, 'values')
        if self.cfg['conflicts']:
            txt = interface.template(generator, 'conflicts', {'names': self.cfg['conflicts']}) + txt
        return txt + super().make_module_extra(*args, **kwargs)

    def shared_statements(self):
        """Statements of the interface that all runtimes share; unloading restores the user's own values."""
        return interface.shared_interface(self.module_generator, self.name, self.full_version, self.installdir,
                                          self.activation(), self.cfg['cluster'])

    def activation(self):
        """Commands that activate the environment, by variables; `true` if it is always active."""
        return {'WITH_CONDA': 'true', 'WITH_VENV': 'true'}

    def sanity_check_step(self, **kwargs):
        """Run torch and the payload with the runtime."""
        # EasyBuild itself may run from an environment, which is active but not for the module; it resets os.environ
        self.tweaked_env_vars['PYTORCH_LAUNCH_ACTIVE'] = '0'
        launch = self.launch_in_test()
        commands = [launch + 'conda-python-distributed -c "%s"' % (CHECK % self.version),
                    launch + 'conda-python-simple "$PAYLOAD"/mnist_ddp.py --help']
        super().sanity_check_step(custom_paths={'files': [], 'dirs': ['bin']}, custom_commands=commands, **kwargs)

    def launch_in_test(self):
        """Prefix of a command of the sanity check to run it with the module's Python, as shell code."""
        return self.launch

    def make_module_step(self, fake=False):
        """
        Write the module file, which appears atomically, and make the installation final.

        EasyBuild has removed the previous module by then, and writes to the final path, where users can load half a
        module. It takes the path from mod_filepath and not as a parameter, so mod_filepath is a hidden file until the
        module is complete. The sanity check's module gets the user's umask, with which Lmod may hide it from root.
        """
        if fake:
            modules = super().make_module_step(fake=True)
            adjust_permissions(modules, stat.S_IROTH)  # the directory around them is private
            return modules
        module_file, self.mod_filepath = self.mod_filepath, self.installation.part
        try:
            modules = super().make_module_step()
            self.installation.finish()
            self.complete()
            os.replace(self.mod_filepath, module_file)
        finally:
            remove_file(self.mod_filepath)
            self.mod_filepath = module_file
        self.installation.discard()
        # EasyBuild did this before the file had its name
        self.invalidate_module_caches(modules)
        self.modules_tool.update()
        return modules

    def complete(self):
        """Subclasses do what needs a final installation; the module appears after this."""
