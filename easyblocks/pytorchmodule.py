##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
EasyBuild support for PyTorch modules: what the container and the venv have in common.

It fetches locked Python wheels,
installs runscripts, payload and cluster profile beside the runtime, and writes the part of the
module's interface that does not depend on the runtime.
"""
import hashlib
import os
import stat
import sys
from tempfile import gettempdir

from easybuild.framework.easyblock import EasyBlock, StopException
from easybuild.framework.easyconfig import CUSTOM
from easybuild.tools.build_log import EasyBuildError, print_msg, print_warning
from easybuild.tools.config import build_option, source_paths
from easybuild.tools.filetools import (
    adjust_permissions,
    change_dir,
    copy_dir,
    copy_file,
    det_lock_path,
    mkdir,
    remove_file,
    symlink,
)
from easybuild.tools.utilities import shell_quote

try:
    from easybuild.tools.run import RunShellCmdError, run_shell_cmd
except ImportError as error:
    raise ImportError("the PyTorch easyblocks need EasyBuild 5 or newer: load or install it") from error

# The tree that this file belongs to: EasyBuild includes easyblocks through symbolic links.
TREE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
sys.path.append(os.path.join(TREE, 'easyblocks'))

from pytorch_install.installation import SCARCE, Installation, is_space_gone, show_to_root, space_left  # noqa: E402
from pytorch_install.locks import await_lock, hold_lock  # noqa: E402
from pytorch_install.modulefiles.text import (  # noqa: E402
    check_values,
    conflicts,
    gpu_runtime,
    pushenv,
    template,
    usage,
    whatis,
)
from pytorch_install.preconditions import check_path, check_profile, check_running_jobs, require_profile  # noqa: E402
from pytorch_install.runtime_commands import absent_commands  # noqa: E402
from pytorch_install.sourcepath import source_directories  # noqa: E402
from pytorch_install.wheels import fetch_wheels  # noqa: E402

# The program by which the runtime's Python compiles the installed tree.
COMPILER = os.path.join(TREE, 'easyblocks', 'pytorch_install', 'compile_tree.py')

# Another, which prints what users' packages must not replace, and the file in the installation that has it.
CONSTRAINER = os.path.join(TREE, 'easyblocks', 'pytorch_install', 'runtime_constraints.py')
CONSTRAINTS = 'constraints.txt'

# Its cluster profiles.
PROFILES = os.path.join(TREE, 'modulefiles', 'cluster')

# Where the container runtime keeps what it fetches and builds, if whoever installs names a place.
RUNTIME_DIRECTORIES = [runtime + name for runtime in ('APPTAINER_', 'SINGULARITY_') for name in ('TMPDIR', 'CACHEDIR')]

# Its directories that go into every installation, and have variables of their own in the module.
TREE_PARTS = ['runscripts', 'payload']

# The runscripts that bin/ offers by their names.
COMMANDS = ['conda-python-simple', 'conda-python-distributed', 'torchrun-distributed', 'ddp-env', 'get-master',
            'list-packages']

# Those that stay on the host where the others enter an image: they tell what is wrong with it.
COMMANDS_ON_HOST = ['pytorch-doctor']

# Joins a world of one through the environment alone, as a user's script does.
ALLREDUCE = ("import torch, torch.distributed as dist; dist.init_process_group('gloo'); "
             "total = torch.ones(1); dist.all_reduce(total); dist.destroy_process_group(); "
             "assert total.item() == 1.0")


class EB_PyTorchModule(EasyBlock):
    """Shared base of the PyTorch easyblocks; a subclass provides the runtime."""

    # Whether running jobs import files of the installation directory, which a rebuild removes.
    IN_PLACE = False

    # What the module says of itself: the runtime, where a user's packages go.
    RUNTIME = ''
    PACKAGES = {'pip install --user <name>': 'into $PYTHONUSERBASE',
                'pip uninstall <name>': 'removes it'}

    # Files of the tree's own bin/ that the module's bin/ gets, and of its libexec/: what those commands run.
    HOST_COMMANDS = ['install-kernel']
    HELPERS = ['command.bash', 'write-kernel.bash', 'start-kernel.bash', 'kernelspec.py']

    @staticmethod
    def extra_options(extra_vars=None):
        """Easyconfig parameters that containers and venvs share."""
        extra_vars = EasyBlock.extra_options(extra_vars)
        extra_vars.update({
            'cluster': ['local', "Cluster profile, a module cluster/<name>, that sets fabric and Slurm policy", CUSTOM],
            # NERSC's own module has the second name
            'conflicts': [['pytorch'], "Modules that cannot be loaded beside this one, besides other versions", CUSTOM],
            'gpu': [None, "GPU kind that the runtime is for: 'cuda', 'rocm' or None", CUSTOM],
            'python_version': ['3.11', "Python of the runtime (<major>.<minor>), which locked wheels must fit", CUSTOM],
            'wheel_index': [None, "Package index to ask after those of pip's own configuration", CUSTOM],
        })
        return extra_vars

    def __init__(self, *args, **kwargs):
        """Keep the search paths of compilers and linkers out of the module, and say how to launch."""
        super().__init__(*args, **kwargs)
        for variable in list(self.module_load_environment):
            self.module_load_environment.remove(variable)
        self.module_load_environment.PATH = ['bin']
        self.wheels = None
        self.requirements = None
        require_profile(PROFILES, self.cfg['cluster'])
        for path in (self.installdir, self.mod_filepath):
            check_path(path)
        self.installation = Installation(self.installdir, self.mod_filepath)
        self.writes_usage = not self.cfg['usage']
        self.cfg['usage'] = self.cfg['usage'] or usage(self)
        self.cfg['whatis'] = self.cfg['whatis'] or whatis(self)
        check_values(self)

    def launch(self, image=''):  # noqa: ARG002 (without an image there is nothing to enter)
        """What stands before a command to run it with this module's Python; `image` is shell code."""
        return ''

    def image_variables(self):
        """The module's variables that lead to the image, each with what it is; none without an image."""
        return {}

    def full_version(self):
        """Version with prefix and suffix, as in the module's name."""
        return self.cfg['versionprefix'] + self.version + self.cfg['versionsuffix']

    def source_names(self):
        """File names of the recipe's sources, known before any of them is fetched."""
        return [source['filename'] if isinstance(source, dict) else source for source in self.cfg['sources']]

    def source_with_extension(self, extension):
        """Path of the one source with this file name extension, or None."""
        found = [source['path'] for source in self.src if source['name'].endswith(extension)]
        if len(found) > 1:
            raise EasyBuildError("%s has %d sources that end in %s, at most one is expected: %s",
                                 os.path.basename(self.cfg.path), len(found), extension, ', '.join(found))
        return found[0] if found else None

    @property
    def lock_path(self):
        """EasyBuild's lock on the installation directory, None where it takes none."""
        if self.dry_run or build_option('ignore_locks'):
            return None
        return det_lock_path(self.installdir.replace('/', '_'))

    def run_all_steps(self, *args, **kwargs):
        """Wait for another `eb` as the user asks for, and for none that was killed, before EasyBuild takes the lock."""
        if self.lock_path:
            await_lock(self.lock_path, self.full_mod_name)
        return super().run_all_steps(*args, **kwargs)

    def post_init(self):
        """The lock is taken: say whose it is, clean up after a run that was killed, and check what can be by now."""
        super().post_init()
        if self.lock_path:
            hold_lock(self.lock_path)
            self.installation.recover()
        if not self.dry_run:
            check_profile(PROFILES, self.cfg['cluster'], self.modules_tool)
            if self.IN_PLACE:
                check_running_jobs(self)

    def run_step(self, step, step_methods):
        """Run one step; after an error or Ctrl-C the installation and the module are as they were before."""
        try:
            super().run_step(step, step_methods)
        except StopException:
            if self.installation.begun and self.installation.has_module:
                change_dir(self.orig_workdir)
                self.installation.roll_back()
                print_msg("stopped after the %s step: %s is as it was before, what this step installed is removed",
                          step, self.full_mod_name)
            raise
        except BaseException as error:
            places = {'software': self.installdir, 'sources': source_paths()[0], 'build': self.builddir,
                      'temporary files': gettempdir()}
            places.update({name: os.environ[name] for name in RUNTIME_DIRECTORIES if os.environ.get(name)})
            least, space = space_left(places)
            if self.installation.begun:
                change_dir(self.orig_workdir)
                self.installation.roll_back()
            if is_space_gone(error):
                raise EasyBuildError("No space is left, or a quota is used up, in the %s step of %s; make room, there "
                                     "was: %s", step, self.full_mod_name, space) from error
            if isinstance(error, RunShellCmdError) and least < SCARCE:
                raise EasyBuildError("The %s step of %s failed, perhaps for want of space (there was: %s), in the "
                                     "command `%s`, whose output is in %s",
                                     step, self.full_mod_name, space, error.cmd, error.out_file) from error
            if isinstance(error, OSError):
                raise EasyBuildError("The %s step of %s failed: %s", step, self.full_mod_name, error) from error
            raise

    def remove_module_file(self):
        """Keep the module that --rebuild replaces while what it leads to is whole: until make_installdir."""
        present = os.path.exists(self.mod_filepath)
        if present and self.module_generator.det_installdir(self.mod_filepath) != self.installdir:
            super().remove_module_file()

    def make_installdir(self, *args, **kwargs):
        """Put the installation before this one aside, and make a new directory."""
        if not self.dry_run:
            self.installation.begin()
            if self.installation.is_link:
                return  # it is new and empty; EasyBuild would try for seconds to remove the link
        super().make_installdir(*args, **kwargs)

    def make_module_step(self, fake=False):
        """Write the module, which appears at once and whole, and makes the installation final."""
        if fake or self.dry_run:
            modules = super().make_module_step(fake=fake)
            if not self.dry_run:
                show_to_root(modules)
            return modules
        module_file = self.mod_filepath
        self.mod_filepath = self.installation.part(module_file)
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
        """Subclasses do what must not be done before the installation is final; its module appears after this."""

    def checksum_step(self):
        """Verify the sources, then fetch the wheels that the lock among them names: all later steps work offline."""
        super().checksum_step()
        if self.lock and not self.dry_run:
            self.requirements, self.wheels = fetch_wheels(self.lock, source_directories(self.name, 'wheels'),
                                                          self.cfg['python_version'], index=self.cfg['wheel_index'])

    @property
    def lock(self):
        """Path of the requirements lock (the source that ends in .txt), or None."""
        return self.source_with_extension('.txt')

    def extract_step(self):
        """Nothing to unpack: sources are data files that later steps read where they are."""
        for source in self.src:
            source['finalpath'] = self.builddir

    def configure_step(self):
        """Nothing to configure; subclasses check what they need before the long steps."""

    def build_step(self):
        """Nothing to build, unless the subclass does."""

    def install_step(self):
        """Install the scripts, which running jobs may be about to start, then the runtime and everything around it."""
        self.install_scripts()
        self.install_runtime()
        self.install_tree()
        self.write_constraints()

    def install_runtime(self):
        """Put image or venv into the installation directory."""
        raise NotImplementedError

    def install_scripts(self):
        """Install runscripts and payload."""
        for part in TREE_PARTS:
            copy_dir(os.path.join(TREE, part), os.path.join(self.installdir, part),
                     ignore=lambda _, names: [name for name in names if name == '__pycache__'])

    def install_tree(self):
        """Install the cluster profile and the commands in bin/; compile the scripts."""
        # .policy.tcl is what profiles source from beside themselves
        for name in (self.cfg['cluster'], '.policy.tcl'):
            copy_file(os.path.join(PROFILES, name), os.path.join(self.installdir, 'modulefiles', 'cluster', name))
        self.compile_bytecode()
        self.check_commands()
        for directory, names in (('bin', self.HOST_COMMANDS), ('libexec', self.HELPERS)):
            mkdir(os.path.join(self.installdir, directory))
            for name in names:
                copy_file(os.path.join(TREE, directory, name), os.path.join(self.installdir, directory, name))
        for command, target in sorted(self.commands().items()):
            symlink(target, os.path.join(self.installdir, 'bin', command), use_abspath_source=False)

    def permissions_step(self):
        """Adjust permissions; the payload stays writable for its owner: users copy it, and `cp -r` keeps modes.

        With read-only-installdir, or from a checkout that is read-only, nobody could edit the copies.
        """
        super().permissions_step()
        adjust_permissions(os.path.join(self.installdir, 'payload'), stat.S_IWUSR, ignore_errors=True)

    def compile_bytecode(self):
        """Compile runscripts and payload for the runtime's Python, as its ranks may not write there."""
        run_shell_cmd('%s -I - %s < %s'
                      % (self.runtime_python(), shell_quote(self.installdir), shell_quote(COMPILER)))

    def write_constraints(self):
        """Keep the versions of torch and of what belongs to it, for pip and uv to leave them as they are."""
        # a PYTHONPATH and a PIP_CONSTRAINT that are left are the image's own
        result = run_shell_cmd('env --unset=PYTHONPATH --unset=PIP_CONSTRAINT %s -s - %s < %s'
                               % (self.runtime_python(), shell_quote(self.cfg['wheel_index'] or ''),
                                  shell_quote(CONSTRAINER)), split_stderr=True, hidden=True)
        if result.output.strip():
            with open(os.path.join(self.installdir, CONSTRAINTS), 'w') as file:
                file.write(result.output)

    def runtime_python(self):
        """Command that runs the installed runtime's Python before its module exists."""
        raise NotImplementedError

    def commands(self):
        """Links in bin/: their names, and what each leads to, relative to bin/."""
        links = {name: os.path.join(os.pardir, 'runscripts', name) for name in COMMANDS + COMMANDS_ON_HOST}
        # no command: Jupyter kernels that earlier installations made call it by this path
        return {**links, 'start-kernel.bash': os.path.join(os.pardir, 'libexec', 'start-kernel.bash')}

    def check_commands(self):
        """Leave commands out that the runtime has not; there are none but in images."""

    def leave_out_absent(self, enter, names):
        """Leave out those of the recipe's commands, among `names`, that are not found after `enter`; name them."""
        absent = absent_commands(enter, names)
        if absent:
            print_warning("the image has no %s on its path, which the recipe names in 'commands': not in the module's "
                          "bin/", ', '.join(absent))
            self.cfg['commands'] = [name for name in self.cfg['commands'] if name not in absent]
            if self.writes_usage:
                self.cfg['usage'] = usage(self)

    def make_module_extra(self, *args, **kwargs):
        """Write the interface that both runtimes share; a user's own values come back on unload."""
        txt = conflicts(self.module_generator, self.cfg['conflicts']) + template(self.module_generator, 'pushenv')
        txt += super().make_module_extra(*args, **kwargs)
        directories = {'CONTAINERROOT': ''}
        for part in TREE_PARTS:
            directories.update({part.upper(): part, part.upper() + self.name.upper(): part})
        for variable, path in directories.items():
            txt += self.module_generator.set_environment(variable, {'value': path, 'pushenv': True}, relpath=True)
        for variable, value in self.activation().items():
            # a $NAME in it is for the shell that runs it
            txt += pushenv(self.module_generator, variable, value)
        # --module-only may describe an installation that has no constraints, and pip stops at a file that is absent
        constrained = os.path.exists(os.path.join(self.installdir, CONSTRAINTS))
        txt += template(self.module_generator, 'packages',
                        {'constrained': ['PIP_CONSTRAINT', 'UV_CONSTRAINT'] if constrained else []},
                        directory=os.path.join('.local', 'easybuild', self.name, self.full_version()),
                        identity=hashlib.sha256(self.installdir.encode()).hexdigest()[:8])
        runtime = gpu_runtime(self)
        if runtime:
            # the cluster profile compares it with what the site's driver supports
            txt += self.module_generator.set_environment('__PYTORCH_RUNTIME', runtime)
        # last on the path, so that a profile of the site's own wins
        txt += self.module_generator.append_paths('MODULEPATH', ['modulefiles'])
        txt += self.module_generator.load_module('cluster/' + self.cfg['cluster'], recursive_unload=True)
        return txt

    def activation(self):
        """Commands that activate the environment, by the variable that holds them; `true` where it always is."""
        return {'WITH_CONDA': 'true', 'WITH_VENV': 'true'}

    def sanity_check_step(self, custom_paths=None, custom_commands=None, **kwargs):
        """Run torch: import it, reduce over a world of one through the runscript, and start the payload."""
        # EasyBuild's own temporary directory, which need not be visible in a container
        launch = self.launch('--bind "$TMPDIR" "$SIF"')
        paths = {
            'files': ['runscripts/conda-python-distributed', 'payload/mnist_ddp.py'] + (custom_paths or []),
            'dirs': ['bin', 'modulefiles/cluster'],
        }
        # without what follows the numbers: 2.3.1+rocm6.0, and NVIDIA's images have 2.1.0a0+b5021ba for 2.1.0
        version = ("import re, torch; found = re.match('[0-9.]+', torch.__version__)[0]; "
                   "assert found == '%s', torch.__version__" % self.version)
        commands = [
            launch + 'conda-python-distributed -c "%s; %s"' % (version, ALLREDUCE),  # torch is slow to import
            launch + 'conda-python-simple "$PAYLOAD"/mnist_ddp.py --help',
        ] + (custom_commands or [])
        super().sanity_check_step(custom_paths=paths, custom_commands=commands, **kwargs)
