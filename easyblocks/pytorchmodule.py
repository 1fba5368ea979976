##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
EasyBuild support for PyTorch modules: what the container and the venv have in common.

Called by EasyBuild through pytorchcontainer.py and pytorchvenv.py. It fetches locked Python wheels,
installs runscripts, payload and cluster profile beside the runtime, and writes the part of the
module's interface that does not depend on the runtime.
"""
import os
import platform
import sys

from easybuild.framework.easyblock import EasyBlock
from easybuild.framework.easyconfig import CUSTOM
from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import build_option, source_paths
from easybuild.tools.filetools import change_dir, copy_dir, copy_file, mkdir, remove_dir, symlink
from easybuild.tools.run import run_shell_cmd
from easybuild.tools.utilities import shell_quote

# The tree that this file belongs to: EasyBuild includes easyblocks through symbolic links.
TREE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))

# Its directories that go into every installation, and have variables of their own in the module.
TREE_PARTS = ['runscripts', 'payload']

# The runscripts that bin/ offers by their names.
COMMANDS = ['conda-python-simple', 'conda-python-distributed', 'torchrun-distributed', 'ddp-env', 'get-master']

# Oldest to newest glibc that wheels of the last years are tagged with (PEP 600).
MANYLINUX = ['manylinux1', 'manylinux2010', 'manylinux2014'] + ['manylinux_2_%d' % minor for minor in range(5, 29)]

# Joins a world of one through the environment alone, as a user's script does.
ALLREDUCE = ("import torch, torch.distributed as dist; dist.init_process_group('gloo'); "
             "total = torch.ones(1); dist.all_reduce(total); dist.destroy_process_group(); "
             "assert total.item() == 1.0")


class EB_PyTorchModule(EasyBlock):
    """Shared base of the PyTorch easyblocks; a subclass provides the runtime."""

    # What stands before a command to run it with this module's Python; {image} is where the image is.
    LAUNCH = ''

    @staticmethod
    def extra_options(extra_vars=None):
        """Easyconfig parameters that containers and venvs share."""
        extra_vars = EasyBlock.extra_options(extra_vars)
        extra_vars.update({
            'cluster': ['local', "Cluster profile, a module cluster/<name>, that sets fabric and Slurm policy", CUSTOM],
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
        if not self.cfg['usage']:
            launch = self.LAUNCH.format(image='$SIF')
            self.cfg['usage'] = '\n'.join([
                "module load %s/%s" % (self.name, self.full_version()),
                "srun -N2 --ntasks-per-node=2 %sconda-python-distributed -u train.py" % launch,
                "srun -N2 --ntasks-per-node=2 %sconda-python-distributed -u $PAYLOAD/mnist_ddp.py" % launch,
            ])

    def full_version(self):
        """Version with prefix and suffix, as in the module's name."""
        return self.cfg['versionprefix'] + self.version + self.cfg['versionsuffix']

    def source_with_extension(self, extension):
        """Path of the one source with this file name extension, or None."""
        found = [source['path'] for source in self.src if source['name'].endswith(extension)]
        if len(found) > 1:
            raise EasyBuildError("%s has %d sources that end in %s, at most one is expected: %s",
                                 os.path.basename(self.cfg.path), len(found), extension, ', '.join(found))
        return found[0] if found else None

    def checksum_step(self):
        """Verify the sources, then fetch the wheels that the lock among them names: all later steps work offline."""
        super().checksum_step()
        self.wheels = os.path.join(source_paths()[0], 'p', self.name, 'wheels')
        if self.lock and not self.dry_run and not build_option('module_only'):
            self.fetch_wheels()

    @property
    def lock(self):
        """Path of the requirements lock (the source that ends in .txt), or None."""
        return self.source_with_extension('.txt')

    def fetch_wheels(self):
        """Download the locked wheels into the source path, hashes verified, unless they are there already."""
        mkdir(self.wheels, parents=True)
        platforms = ['--platform %s_%s' % (tag, platform.machine()) for tag in MANYLINUX]
        command = ' '.join(['%s -m pip download --quiet --require-hashes --no-deps --only-binary=:all:'
                            % shell_quote(sys.executable),
                            '--python-version', self.cfg['python_version'], *platforms,
                            '--dest', shell_quote(self.wheels), '-r', shell_quote(self.lock)])
        attempts = [('those fetched before', '--no-index --find-links %s' % shell_quote(self.wheels)),
                    ("pip's own configuration", '')]
        if self.cfg['wheel_index']:
            attempts.append((self.cfg['wheel_index'], '--extra-index-url %s' % shell_quote(self.cfg['wheel_index'])))
        for origin, options in attempts:
            print_msg("wheels of %s: trying %s..." % (os.path.basename(self.lock), origin), log=self.log)
            result = run_shell_cmd('%s %s' % (command, options), fail_on_error=False, hidden=True)
            if result.exit_code == 0:
                return
        errors = [line for line in result.output.splitlines() if 'ERROR' in line] or [result.output.strip()]
        raise EasyBuildError("Fetching the wheels that %s locks failed, also from %s: %s Try again, or put the wheels "
                             "into %s by hand.", self.lock, origin, errors[-1], self.wheels)

    def extract_step(self):
        """Nothing to unpack: sources are data files that later steps read where they are."""
        for source in self.src:
            source['finalpath'] = self.builddir

    def configure_step(self):
        """Nothing to configure; subclasses check what they need before the long steps."""

    def build_step(self):
        """Nothing to build, unless the subclass does."""

    def install_step(self):
        """Install the runtime, then everything around it; after a failure or Ctrl-C nothing is left behind."""
        try:
            self.install_runtime()
            self.install_tree()
        except BaseException:
            change_dir(self.orig_workdir)
            remove_dir(self.installdir)
            raise

    def install_runtime(self):
        """Put image or venv into the installation directory."""
        raise NotImplementedError

    def install_tree(self):
        """Install runscripts, payload, cluster profile, and the commands in bin/."""
        for part in TREE_PARTS:
            copy_dir(os.path.join(TREE, part), os.path.join(self.installdir, part),
                     ignore=lambda _, names: [name for name in names if name == '__pycache__'])
        profiles = os.path.join(TREE, 'modulefiles', 'cluster')
        profile = os.path.join(profiles, self.cfg['cluster'])
        if not os.path.isfile(profile):
            raise EasyBuildError("There is no cluster profile %s; the easyconfig parameter 'cluster' names one of: %s",
                                 profile, ', '.join(sorted(name for name in os.listdir(profiles) if name[0] != '.')))
        # .policy.tcl is what profiles source from beside themselves
        for name in (self.cfg['cluster'], '.policy.tcl'):
            copy_file(os.path.join(profiles, name), os.path.join(self.installdir, 'modulefiles', 'cluster', name))
        self.compile_bytecode()
        for command, target in sorted(self.commands().items()):
            mkdir(os.path.join(self.installdir, 'bin'))
            symlink(os.path.join(os.pardir, 'runscripts', target),
                    os.path.join(self.installdir, 'bin', command), use_abspath_source=False)

    def compile_bytecode(self):
        """Compile runscripts and payload for the runtime's Python, as its ranks may not write there."""
        # the payload's bytecode is checked against its source: users copy the directory and edit it
        for library, mode in [('runscripts/pytorch_launch', 'unchecked-hash'), ('payload/training', 'checked-hash')]:
            run_shell_cmd("%s -m compileall -q --invalidation-mode %s %s"
                          % (self.runtime_python(), mode, shell_quote(os.path.join(self.installdir, library))))

    def runtime_python(self):
        """Command that runs the installed runtime's Python before its module exists."""
        raise NotImplementedError

    def commands(self):
        """Commands in bin/: their names, and the runscript that each links to."""
        return {name: name for name in COMMANDS}

    def make_module_extra(self, *args, **kwargs):
        """Write the interface that both runtimes share; a user's own values come back on unload."""
        txt = super().make_module_extra(*args, **kwargs)
        directories = {'CONTAINERROOT': ''}
        for part in TREE_PARTS:
            directories.update({part.upper(): part, part.upper() + self.name.upper(): part})
        for variable, path in directories.items():
            txt += self.module_generator.set_environment(variable, {'value': path, 'pushenv': True}, relpath=True)
        for variable, value in self.activation().items():
            txt += self.module_generator.set_environment(variable, {'value': value, 'pushenv': True})
        # ~/.local stays out, and `pip install --user` has a place of this user and this module
        txt += self.module_generator.set_environment('PYTHONUSERBASE', {
            'value': os.path.join('$HOME', '.local', 'easybuild', self.name, self.full_version()), 'pushenv': True})
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
        launch = self.LAUNCH.format(image='--bind "$TMPDIR" "$SIF"')
        paths = {
            'files': ['runscripts/conda-python-distributed', 'payload/mnist_ddp.py'] + (custom_paths or []),
            'dirs': ['bin', 'modulefiles/cluster'],
        }
        version = "import torch; found = torch.__version__.split('+')[0]; assert found == '%s', found" % self.version
        commands = [
            launch + 'conda-python-simple -c "%s"' % version,
            launch + 'conda-python-distributed -c "%s"' % ALLREDUCE,
            launch + 'conda-python-simple "$PAYLOAD"/mnist_ddp.py --help',
        ] + (custom_commands or [])
        super().sanity_check_step(custom_paths=paths, custom_commands=commands, **kwargs)
