##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
What a module says of itself, and statements that EasyBuild's generators lack; called by the easyblocks.
"""
import os
import textwrap

from easybuild.tools.filetools import read_file
from easybuild.tools.utilities import quote_str

GPUS = {'cuda': 'NVIDIA (CUDA)', 'rocm': 'AMD (ROCm)', None: 'none'}

KEYWORDS = 'PyTorch, torch, machine learning, deep learning, distributed training, DDP'


def usage(block):
    """Text of the help's section on usage, with the three lines that a user copies to launch."""
    run = 'srun -N2 --ntasks-per-node=2 %sconda-python-distributed -u ' % block.launch()
    variables = {
        **block.image_variables(),
        '$RUNSCRIPTS': 'directory of the runscripts',
        '$PAYLOAD': 'directory of the example training',
        '$CONTAINERROOT': 'the installation directory',
        '$PYTHONUSERBASE': 'your directory for this module, in place of ~/.local',
        '$WITH_CONDA, $WITH_VENV': 'commands that activate the environment; the runscripts run them',
    }
    packages = dict(block.PACKAGES)
    if block.cfg['wheel_index']:
        packages['pip install --extra-index-url %s torchvision' % block.cfg['wheel_index']] = 'built for this torch'
    lines = [
        'module load %s/%s' % (block.name, block.full_version()),
        run + 'train.py',
        run + '$PAYLOAD/mnist_ddp.py',
        '',
        'What a rank is given: conda-python-distributed --dry-run',
        '',
        'Variables:',
        *rows(variables),
        '',
        'Your own packages:',
        *rows(packages),
        '',
        'Commands on the host%s:' % (', with no need to enter the image' if block.image_variables() else ''),
        *textwrap.wrap(', '.join(commands(block)), 100, initial_indent='    ', subsequent_indent='    ',
                       break_on_hyphens=False),
    ]
    return '\n'.join(lines)


def commands(block):
    """Names of the commands in bin/ that are for users: all but the files behind them, and names with a version."""
    links = block.commands()
    return sorted({name for name in [*links, *block.HOST_COMMANDS] if '.' not in name} - set(links.values()))


def rows(table):
    """Lines of a table of two columns, from a dictionary."""
    width = max(map(len, table))
    return ['    %s    %s' % (name.ljust(width), meaning) for name, meaning in table.items()]


def whatis(block):
    """Lines for `module whatis`, `module keyword` and `module spider`, which searches them."""
    return [
        'Description: ' + ' '.join(block.cfg['description'].split()),
        'Version: ' + block.version,
        'Homepage: ' + block.cfg['homepage'],
        'Runtime: ' + block.RUNTIME,
        'GPU: ' + GPUS.get(block.cfg['gpu'], block.cfg['gpu']),
        'Cluster profile: ' + block.cfg['cluster'],
        'Keywords: ' + KEYWORDS,
    ]


def conflicts(generator, names):
    """Statements that refuse to load the module beside others."""
    statement = {'Lua': 'conflict("%s")\n', 'Tcl': 'conflict %s\n'}[generator.SYNTAX]
    return ''.join(statement % name for name in names)


def template(generator, name, lists=None, **values):
    """A file from beside this one in the generator's syntax, with texts and lists of texts filled in; '' without it."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + '.' + generator.SYNTAX.lower())
    if not os.path.exists(path):
        return ''
    separator = {'Lua': ', ', 'Tcl': ' '}[generator.SYNTAX]
    for key, texts in (lists or {}).items():
        values[key] = separator.join(quote_str(text, tcl=True) for text in texts)
    return read_file(path) % values
