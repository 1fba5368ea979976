##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
What a module says of itself, and statements that EasyBuild's generators lack; called by the easyblocks.
"""
import os
import re
import textwrap

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import read_file

GPUS = {'cuda': 'NVIDIA (CUDA)', 'rocm': 'AMD (ROCm)', None: 'none'}

RUNTIMES = {'cuda': 'CUDA', 'rocm': 'ROCm'}

# What has a meaning between quotation marks; in Tcl, braces around the whole are counted too.
SPECIAL = {'Lua': r'[\\"]', 'Tcl': r'[\\"$\[\]{}]'}

# Parameters that the module sets variables to or compares with.
VALUES = ['binds', 'central_images', 'cluster', 'commands', 'conda_activation', 'conflicts', 'gpu', 'image',
          'shifter_modules']

# Characters that separate binds, or that are in no module's name; and those that Lmod evaluates a second time when it
# translates Tcl (tcl2lua.tcl of 8.6: output-path-foo, conflict).
REFUSED = {'binds': ',"\\', 'conflicts': ' "\'$[]{}();\\`&|<>#%,', 'cluster': ' "\'$[]{}();\\`&|<>#%,'}

# Parameters that EasyBuild writes into the module's help, in brackets or braces, and what ends these.
TEXTS = ['citing', 'description', 'docpaths', 'docurls', 'examples', 'homepage', 'site_contacts', 'upstream_contacts',
         'usage', 'whatis']
UNWRITABLE = {'Lua': ['[==[', ']==]'], 'Tcl': ['\\']}

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
    """Names of the commands in bin/ that are for users: all but names with a version or an extension."""
    return sorted(name for name in [*block.commands(), *block.HOST_COMMANDS] if '.' not in name)


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


def gpu_runtime(block):
    """CUDA or ROCm and its version by the module's name, such as 'ROCm 6.0' for 2.3.1-rocm-6.0.3-..., or None."""
    found = re.search(r'-%s-(\d+\.\d+)' % block.cfg['gpu'], block.full_version())
    return '%s %s' % (RUNTIMES[block.cfg['gpu']], found.group(1)) if found else None


def conflicts(generator, names):
    """Statements that refuse to load the module beside others."""
    statement = {'Lua': 'conflict(%s)\n', 'Tcl': 'conflict %s\n'}[generator.SYNTAX]
    return ''.join(statement % quoted(generator, name) for name in names)


def pushenv(generator, variable, value):
    """A statement that sets a variable to this very text; EasyBuild's own is for values without special characters."""
    statement = {'Lua': 'pushenv("%s", %s)\n', 'Tcl': 'pushenv %s %s\n'}[generator.SYNTAX]
    return statement % (variable, quoted(generator, value))


def template(generator, name, lists=None, **values):
    """A file from beside this one in the generator's syntax, with texts and lists of texts filled in; '' without it."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + '.' + generator.SYNTAX.lower())
    if not os.path.exists(path):
        return ''
    separator = {'Lua': ', ', 'Tcl': ' '}[generator.SYNTAX]
    # texts stand between quotation marks, some with other words
    values = {key: quoted(generator, value)[1:-1] for key, value in values.items()}
    for key, texts in (lists or {}).items():
        values[key] = separator.join(quoted(generator, text) for text in texts)
    return read_file(path) % values


def quoted(generator, text):
    """A text without control characters between quotation marks, so that the module has it as it is."""
    return '"%s"' % re.sub(SPECIAL[generator.SYNTAX], r'\\\g<0>', text)


def check_values(block):
    """Stop before the long steps where a recipe has what no module can hold, whatever its quotation marks."""
    parameters = {name: block.cfg[name] for name in VALUES + TEXTS if name in block.cfg}
    for name, value in {**parameters, 'sources': block.source_names()}.items():
        for text in [value] if isinstance(value, str) else value or []:
            if name in TEXTS:
                wrong = next((part for part in UNWRITABLE[block.module_generator.SYNTAX] if part in text), None)
            else:
                refused = REFUSED.get(name, '')
                wrong = next((part for part in text if not part.isprintable() or part in refused), None)
            if wrong:
                raise EasyBuildError("%s: a module in %s syntax cannot hold %r of '%s': %r. Remove it%s.",
                                     os.path.basename(block.cfg.path), block.module_generator.SYNTAX, wrong, name, text,
                                     ', or write two binds' if wrong == ',' else '')
