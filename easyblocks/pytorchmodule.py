# SPDX-License-Identifier: GPL-2.0-only
"""
EasyBuild support for PyTorch modules: what containers and virtual environments have in common.

It fetches locked Python wheels, installs runscripts, payload and cluster profile beside the runtime, and writes the
part of the module that does not depend on the runtime.
"""
import os
import stat
import sys

from easybuild.framework.easyblock import EasyBlock
from easybuild.framework.easyconfig import CUSTOM
from easybuild.tools.filetools import adjust_permissions
from easybuild.tools.module_naming_scheme.utilities import det_full_ec_version

# EasyBuild includes easyblocks through symbolic links
sys.path.append(os.path.dirname(os.path.realpath(__file__)))

from pytorch_install import tree  # noqa: E402 (the line before; it checks EasyBuild's version)

# isort: split
from easybuild.easyblocks.generic.containerimage import one_source  # noqa: E402
from easybuild.easyblocks.generic.lockedvenv import Wheels, fetch_wheels  # noqa: E402

from pytorch_install.directories import source_directories  # noqa: E402
from pytorch_install.engine.mixin import EngineMixin  # noqa: E402
from pytorch_install.engine.preconditions import (  # noqa: E402
    check_machine,
    check_profile,
    check_running_jobs,
    machines_of,
    require_profile,
)
from pytorch_install.modulefiles.help import VENV, usage, whatis  # noqa: E402
from pytorch_install.modulefiles.interface import installation_values, shared_interface  # noqa: E402
from pytorch_install.modulefiles.statements import check_values, conflicts, template  # noqa: E402
from pytorch_install.parameters import EXPECTED, check_parameters  # noqa: E402
from pytorch_install.runtime import hold_packages, offered_commands, run_program  # noqa: E402

# Initializes a process group of one rank from environment variables, as users' scripts do, in the same command as the
# check of torch's version: importing torch is slow. Only the numbers of the version are compared: that of 2.3.1+rocm6.0
# is 2.3.1, and NVIDIA's images have 2.1.0a0+b5021ba for 2.1.0.
CHECK = ("import re, torch; found = re.match('[0-9.]+', torch.__version__)[0]; "
         "assert found == '%s', torch.__version__; "
         "import torch, torch.distributed as dist; dist.init_process_group('gloo'); "
         "total = torch.ones(1); dist.all_reduce(total); dist.destroy_process_group(); "
         "assert total.item() == 1.0")


class EB_PyTorchModule(EngineMixin, EasyBlock):
    """
    Shared base of the PyTorch easyblocks.

    A subclass provides the runtime: install_runtime puts it into the installation directory, runtime_python is the
    command (a list) of its Python before the module exists, and enter_image the one that runs others in the image.
    """

    # Easyconfig parameters, besides those of the classes that a class is derived from.
    PARAMETERS = {
        'cluster': ['local', "Cluster profile, a module cluster/<name>, that sets fabric and Slurm policy", CUSTOM],
        # NERSC's module has this name
        'conflicts': [['pytorch'], "Modules that cannot be loaded beside this one, besides other versions", CUSTOM],
        'gpu': [None, "GPU kind that the runtime is for: 'cuda', 'rocm', 'xpu' or None", CUSTOM],
        'machines': [[], "Machines (`uname -m`) that the runtime is for; by default, those of the lock, or any",
                     CUSTOM],
        'python_version': ['3.11', "Python of the runtime (<major>.<minor>), which locked wheels must fit", CUSTOM],
        'wheel_index': [None, "Package index to ask after those of pip's own configuration", CUSTOM],
    }

    # Whether running jobs import files of the installation directory, which a rebuild removes.
    IN_PLACE = False

    # What starts the image, or mounts the packed venv, in libexec/enter, and whether the users' environment has python
    # and pip.
    ENGINE = ''
    BRINGS_PYTHON = False

    @classmethod
    def extra_options(cls, extra_vars=None):
        """Easyconfig parameters: those of the generic easyblock, and PARAMETERS of all classes."""
        extra_vars = super().extra_options(extra_vars)
        for base in reversed(cls.__mro__):
            extra_vars.update(vars(base).get('PARAMETERS', {}))
        return extra_vars

    def __init__(self, ec, *args, **kwargs):
        """Check the recipe, remove search paths of compilers and linkers from the module, and write its help."""
        check_parameters(ec, self.extra_options(), EXPECTED)
        super().__init__(ec, *args, **kwargs)
        for variable in list(self.module_load_environment):
            self.module_load_environment.remove(variable)
        self.module_load_environment.PATH = ['bin']
        self.wheels = None
        require_profile(tree.PROFILES, self.cfg['cluster'])
        self.writes_usage = not self.cfg['usage']
        self.write_usage()
        self.cfg['whatis'] = self.cfg['whatis'] or whatis(self.cfg, self.runtime_help())
        check_values(self.cfg, [source['name'] for source in self.records], self.module_generator.SYNTAX)

    def runtime_help(self):
        return VENV

    def write_usage(self):
        """Write the help's section on usage, unless the recipe has one."""
        if self.writes_usage:
            module = '%s/%s' % (self.name, det_full_ec_version(self.cfg))
            commands = tree.user_commands(self.ENGINE, self.image_commands)
            self.cfg['usage'] = usage(module, self.runtime_help(), commands, self.cfg['gpu'],
                                      self.cfg['wheel_index'])

    @property
    def records(self):
        """EasyBuild's records of the sources; before the fetch step, their names."""
        return self.src or [{'name': entry['filename'] if isinstance(entry, dict) else entry}
                            for entry in self.cfg['sources']]

    @property
    def lock(self):
        """EasyBuild's record of the requirements lock (the source that ends in .txt), or None."""
        return one_source(self.records, '.txt', self.cfg.path)

    @property
    def image_commands(self):
        """Commands of the image that bin/ offers on the host."""
        return self.cfg['commands'] if self.ENGINE else []

    def check_host(self):
        """Check the recipe's machines, and those of a lock beside it."""
        check_machine(os.path.basename(self.cfg.path), self.cfg['machines'],
                      "Install it on such a host, or choose a recipe for this one")
        if self.lock:
            self.check_lock(self.lock.get('path') or os.path.join(os.path.dirname(self.cfg.path), self.lock['name']))

    def check_lock(self, path):
        """Check the machines of a requirements lock, which may be somewhere else on the source path."""
        if os.path.isfile(path):
            check_machine(path, machines_of(path), "Add the hashes of this machine's wheels, or choose another recipe")

    def check_preconditions(self):
        """Check the cluster profile, and that a rebuild does not harm running jobs."""
        check_profile(tree.PROFILES, self.cfg['cluster'], self.modules_tool)
        if self.IN_PLACE and self.installation.has_module:
            check_running_jobs(self.full_mod_name, self.cfg.path, self.cfg['stop'])

    def checksum_step(self):
        """Verify the sources, then fetch the wheels of their lock: all later steps work offline."""
        super().checksum_step()
        path = self.lock and self.lock.get('path')
        if path and not self.wheels:
            self.check_lock(path)
            directories = source_directories(self.name, 'wheels')
            self.wheels = (Wheels(path, directories[0]) if self.dry_run else
                           fetch_wheels(path, directories, self.cfg['python_version'], self.cfg['wheel_index']))

    def extract_step(self):
        """Leave the sources where they are: later steps read them there."""
        for source in self.src:
            source['finalpath'] = self.builddir

    def configure_step(self):
        """Subclasses check what they need before the long steps."""

    def build_step(self):
        """Subclasses build what they install."""

    def install_step(self):
        """Install the scripts, which running jobs may start at any moment, then the runtime and everything else."""
        self.install_scripts()
        self.install_runtime()
        self.install_tree()
        self.hold_packages()

    def install_scripts(self):
        tree.install_parts(self.installdir)

    def install_tree(self):
        """Install the cluster profile and the commands in bin/; compile the scripts."""
        tree.install_profile(self.cfg['cluster'], self.installdir)
        self.compile_bytecode()
        if self.ENGINE:
            self.check_commands()
        tree.install_commands(self.ENGINE, self.image_commands, self.installdir, self.values_without_module())

    def values_without_module(self):
        """Values of libexec/enter for commands that start without the module: texts and lists, by their names."""
        return installation_values(self.name, det_full_ec_version(self.cfg), self.installdir, self.cfg)

    def compile_bytecode(self):
        """Compile runscripts and payload for the runtime's Python: ranks cannot write there."""
        run_program(self.runtime_python(), 'compile_tree.py', self.installdir)

    def check_commands(self):
        """Keep only those of the recipe's commands that the image has."""
        self.cfg['commands'] = offered_commands(self.enter_image(), self.runtime_python(), self.cfg['commands'],
                                                self.BRINGS_PYTHON)
        self.write_usage()

    def hold_packages(self):
        hold_packages(self.runtime_python(), self.installdir, self.cfg['wheel_index'])

    def permissions_step(self):
        """Adjust permissions; the payload stays writable for its owner, as `cp -r` of users keeps modes."""
        super().permissions_step()
        adjust_permissions(os.path.join(self.installdir, 'payload'), stat.S_IWUSR, ignore_errors=True)

    def make_module_extra(self, *args, **kwargs):
        """Add the interface that all runtimes share; unloading restores the user's own values."""
        txt = conflicts(self.module_generator, self.cfg['conflicts']) + template(self.module_generator, 'pushenv')
        txt += super().make_module_extra(*args, **kwargs)
        return txt + shared_interface(self.module_generator, self.name, det_full_ec_version(self.cfg), self.installdir,
                                      self.activation(), self.cfg['cluster'])

    def activation(self):
        """Commands that activate the environment, by variables; `true` if it is always active."""
        return {'WITH_CONDA': 'true', 'WITH_VENV': 'true'}

    def sanity_check_step(self, custom_paths=None, custom_commands=None, **kwargs):
        """Run torch and the payload with the runtime."""
        paths = {
            'files': ['runscripts/conda-python-distributed', 'payload/mnist_ddp.py'] + (custom_paths or []),
            'dirs': ['bin', 'modulefiles/cluster'],
        }
        # EasyBuild itself may run from an environment, which is active but not for the module
        os.environ['PYTORCH_LAUNCH_ACTIVE'] = '0'
        launch = self.launch_in_test()
        commands = [launch + 'conda-python-distributed -c "%s"' % (CHECK % self.version),
                    launch + 'conda-python-simple "$PAYLOAD"/mnist_ddp.py --help', *(custom_commands or [])]
        super().sanity_check_step(custom_paths=paths, custom_commands=commands, **kwargs)

    def launch_in_test(self):
        """Prefix of a command of the sanity check to run it with the module's Python, as shell code."""
        return self.runtime_help().launch
