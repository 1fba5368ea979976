# SPDX-License-Identifier: GPL-2.0-only
"""
The text of `module help` and `module whatis`.
"""
import textwrap
from typing import Dict, NamedTuple

GPUS = {'cuda': 'NVIDIA (CUDA)', 'rocm': 'AMD (ROCm)', 'xpu': 'Intel (XPU)', None: 'none'}

KEYWORDS = 'PyTorch, torch, machine learning, deep learning, distributed training, DDP'


class Runtime(NamedTuple):
    """
    A kind of runtime, for the module's help.

    name: its description
    packages: commands that install packages, with the place they install to
    launch: prefix of a command to run it with this module's Python
    variables: variables of the image, with their meanings; empty without an image
    """

    name: str = ''
    packages: Dict[str, str] = {}
    launch: str = ''
    variables: Dict[str, str] = {}


USERS_PACKAGES = {'pip install --user <name>': 'into $PYTHONUSERBASE, its commands into $PYTHONUSERBASE/bin',
                  'pip uninstall <name>': 'removes it'}

MOUNTS = {'$PYTORCH_MOUNTS': 'directories that the image sees; append yours: '
                             'export PYTORCH_MOUNTS=$PYTORCH_MOUNTS,/data:/data'}

VENV = Runtime(
    name='Python virtual environment',
    packages={'pip install --user <name>': 'into $PYTHONUSERBASE',
              'pip uninstall <name>': 'removes it'})

# By what starts the image.
RUNTIMES = {
    'shifter': Runtime(
        name="image at the site's Shifter gateway",
        packages=USERS_PACKAGES,
        launch='shifter --image=$SHIFTER_IMAGE $RUNSCRIPTS/',
        variables={'$SHIFTER_IMAGE': 'the image'}),
    # bin/ has the runscripts under their names, which enter the image
    'podman-hpc': Runtime(
        name='image of podman-hpc',
        packages=USERS_PACKAGES,
        variables={'$PYTORCH_IMAGE': 'the image', **MOUNTS}),
    # pyxis starts the image in its own working directory
    'enroot': Runtime(
        name='squashfs image for enroot and pyxis',
        packages=USERS_PACKAGES,
        launch='--container-image=$PYTORCH_IMAGE --container-mounts=$PYTORCH_MOUNTS,$PWD --container-workdir=$PWD '
               '$RUNSCRIPTS/',
        variables={'$PYTORCH_IMAGE': 'the image', **MOUNTS}),
    'container-engine': Runtime(
        name='squashfs image for the Container Engine of CSCS',
        packages=USERS_PACKAGES,
        launch='--environment=$PYTORCH_EDF $RUNSCRIPTS/',
        variables={'$PYTORCH_EDF': 'the environment definition file, which names the image and its mounts',
                   '$PYTORCH_IMAGE': 'the image'}),
}


def container(runtime, binds, is_built):
    """
    The Runtime of an image for Apptainer or Singularity.

    :param binds: variable that it reads binds from: Apptainer has its own, even if its command is singularity
    :param is_built: whether the image was built by the recipe, and not by others
    """
    return Runtime(
        name='image for Apptainer or Singularity',
        packages={'pip install <name>': 'into $CONTAINERROOT/user-software, /user-software in the image',
                  'pip install --user <name>': 'into $PYTHONUSERBASE, if you cannot write there',
                  'pip uninstall <name>': 'removes it from either'},
        launch=runtime + ' exec $SIF ',
        variables={'$SIF': 'the image; `%s run` starts %s' % (
            runtime, 'a command, or Python without one' if is_built else 'its own entrypoint, if it has one'),
                   binds: 'directories that the image sees besides the module\'s: export %s=/data' % binds})


def usage(module, runtime, commands, gpu=None, wheel_index=None):
    """Text of the help's section on usage, with the three lines that a user copies to launch."""
    run = 'srun -N2 --ntasks-per-node=2 %sconda-python-distributed -u ' % runtime.launch
    variables = {
        **runtime.variables,
        '$RUNSCRIPTS': 'directory of the runscripts',
        '$PAYLOAD': 'directory of the example training',
        '$CONTAINERROOT': 'the installation directory',
        '$PYTHONUSERBASE': 'your directory for this module, instead of ~/.local',
        '$WITH_CONDA, $WITH_VENV': 'commands that activate the environment; the runscripts run them',
    }
    packages = dict(runtime.packages)
    if wheel_index:
        packages['pip install --extra-index-url %s torchvision' % wheel_index] = 'built for this torch'
    return '\n'.join([
        'module load ' + module,
        run + 'train.py',
        run + '$PAYLOAD/mnist_ddp.py',
        '',
        'GPU: ' + GPUS.get(gpu, gpu),
        'Variables of a rank: conda-python-distributed --dry-run',
        '',
        'Variables:',
        *rows(variables),
        '',
        'Your own packages:',
        *rows(packages),
        '',
        'Commands on the host%s:' % (', without entering the image' if runtime.variables else ''),
        *textwrap.wrap(', '.join(commands), 100, initial_indent='    ', subsequent_indent='    ',
                       break_on_hyphens=False),
    ])


def rows(table):
    """Lines of a table with two columns, from a dictionary."""
    width = max(map(len, table))
    return ['    %s    %s' % (name.ljust(width), meaning) for name, meaning in table.items()]


def whatis(recipe, runtime):
    """Lines for `module whatis`, `module keyword` and `module spider`, which searches them."""
    gpu = recipe['gpu']
    return [
        'Name: ' + recipe['name'],
        'Version: ' + recipe['version'],
        'Category: machine learning',
        'Description: ' + ' '.join(recipe['description'].split()),
        'Homepage: ' + recipe['homepage'],
        'URL: ' + recipe['homepage'],
        'Runtime: ' + runtime.name,
        'GPU: ' + GPUS.get(gpu, gpu),
        'Cluster profile: ' + recipe['cluster'],
        'Keywords: ' + KEYWORDS,
    ]
