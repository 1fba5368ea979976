# SPDX-License-Identifier: GPL-2.0-only
"""
The text of generated modules: statements that EasyBuild's generators lack, in Lua and Tcl, and help.
"""
import hashlib
import os
import re
import shlex

from easybuild.tools.config import install_path
from easybuild.tools.filetools import read_file

from pytorch_install.runtime import HELD

# Statements of modules with values to fill in.
TEMPLATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'modulefiles')

# File in the installation with the module's variables, for commands that run by their path without it.
RECORDED = 'module.bash'

# Variables that name a file of the host with which pip and other programs connect to servers, for example certificates
# of a private authority. The image may lack it, or have another file at its path.
CONNECTION_FILES = ['PIP_CERT', 'PIP_CLIENT_CERT', 'PIP_CONFIG_FILE', 'SSL_CERT_FILE', 'REQUESTS_CA_BUNDLE',
                    'CURL_CA_BUNDLE', 'GIT_SSL_CAINFO', 'AWS_CA_BUNDLE']

# Characters with a meaning in quotation marks; Tcl also counts braces of the block around them.
SPECIAL = {'Lua': r'[\\"]', 'Tcl': r'[\\"$\[\]{}]'}

GPUS = {'cuda': 'NVIDIA (CUDA)', 'rocm': 'AMD (ROCm)', 'xpu': 'Intel (XPU)', None: 'none'}


def usage(module, launch, notes, gpu=None, wheel_index=None):
    """Text of the help's section on usage, with the three lines that a user copies to launch."""
    run = 'srun -N2 --ntasks-per-node=2 %sconda-python-distributed -u ' % launch
    if wheel_index:
        notes = [*notes, '`pip install --extra-index-url %s torchvision` installs one for this torch' % wheel_index]
    return '\n'.join([
        'module load ' + module,
        run + 'train.py',
        run + '$PAYLOAD/mnist_ddp.py',
        '',
        'GPU: ' + GPUS[gpu],
        'Variables of a rank: conda-python-distributed --dry-run',
        'Commands: ls $CONTAINERROOT/bin',
        *notes,
    ])


def shared_interface(generator, name, version, installdir, activation, cluster):
    """
    Variables of the installation, directories for users' packages, and the cluster profile.

    :param activation: commands that activate the environment, by the variables that hold them
    """
    txt = template(generator, 'directories')
    # the user's shell expands a $NAME in it
    txt += pushenv(generator, activation)
    lists = pip_lists(installdir)
    txt += template(generator, 'packages', {'variables': list(lists), 'paths': list(lists.values())},
                    **user_base(name, version, installdir))
    txt += generator.set_environment('__PYTORCH_RUNTIME', built_for(version))
    txt += template(generator, 'active')
    # last, so that a profile of the site takes precedence
    txt += template(generator, 'profile', cluster=cluster)
    if generator.SYNTAX == 'Tcl':  # EasyBuild's statement depends on the module tool
        txt += generator.load_module('cluster/' + cluster, recursive_unload=True)
    return txt


def pip_lists(installdir):
    """
    Paths in the installation, by the variables of pip that the module adds them to.

    They are for an image of others and an earlier installation; elsewhere Python gives pip its options (users_pip.py).
    """
    if os.path.exists(os.path.join(installdir, HELD, 'hooked')):
        return {}
    paths = {'PIP_CONSTRAINT': 'constraints.txt', 'PIP_FIND_LINKS': HELD}
    return {name: path for name, path in paths.items() if os.path.exists(os.path.join(installdir, path))}


def built_for(version):
    """
    CUDA or ROCm of the module and its version, which the cluster profile compares with the site's driver.

    It is never empty: the profile would read the value of the module that this one replaces.
    """
    found = re.search(r'-(cuda|rocm)-(\d+\.\d+)', version)
    if not found:
        return 'none -'
    return '%s %s' % ({'cuda': 'CUDA', 'rocm': 'ROCm'}[found[1]], found[2])


def user_base(name, version, installdir):
    """Where `pip install --user` writes: a directory below the user's home, and the part for this installation."""
    return {'directory': os.path.join('.local', 'easybuild', name, version),
            'identity': hashlib.sha256(installdir.encode()).hexdigest()[:8]}


def recorded_variables(installdir, name, version, more):
    """Shell code with the variables that a module of a Python environment sets, and `more`, for launch.bash."""
    lines = ['export %s=%s\n' % (variable, shlex.quote(value)) for variable, value in more.items()]
    text = read_file(os.path.join(TEMPLATES, RECORDED + '.in'))
    return ''.join(lines) + text % {'root': installdir, 'version': version, **user_base(name, version, installdir)}


def image_interface(generator, recipe, image, user_software):
    """The image (a file name), what it sees of the host, and its search path."""
    txt = ''
    if recipe['gpu'] == 'cuda':
        for flag in ('SINGULARITY_NV', 'APPTAINER_NV'):
            txt += installed(generator, flag, '1', relpath=False)
    lists = {'central_images': recipe['central_images'], 'binds': recipe['binds'], 'connection_files': CONNECTION_FILES}
    txt += template(generator, 'container', lists, image=image, easyconfig=os.path.basename(recipe.path),
                    user_software=user_software, **places())
    # links that libexec/enter makes
    links = ':%s.commands' % user_software
    return txt + template(generator, 'commands', {'directories': []}, users='commands', more=links)


def places():
    """Where EasyBuild puts software and data, which images see."""
    return {name: install_path(name) for name in ('software', 'data')}


def installed(generator, variable, value, relpath=True):
    """The statement that sets a variable, by default to a path in the installation directory; unloading restores it."""
    statement = generator.set_environment(variable, {'value': value, 'pushenv': True}, relpath=relpath)
    if generator.SYNTAX == 'Lua':
        return statement.replace('pushenv', 'set', 1)  # that of values.lua
    return statement


def pushenv(generator, variables):
    """Statements that set variables to any texts; EasyBuild's own do not escape special characters."""
    statement = {'Lua': 'set("%s", %s)\n', 'Tcl': 'pushenv %s %s\n'}[generator.SYNTAX]
    return ''.join(statement % (variable, quoted(generator, value)) for variable, value in variables.items())


def template(generator, name, lists=None, **values):
    """The template `name` in the generator's syntax, with texts and lists of texts filled in; '' if there is none."""
    file = '%s.%s' % (name, generator.SYNTAX.lower())
    path = os.path.join(TEMPLATES, file)
    if not os.path.exists(path):
        return ''
    separator = {'Lua': ', ', 'Tcl': ' '}[generator.SYNTAX]
    # a template has texts in quotation marks, some together with other words
    values = {key: quoted(generator, value)[1:-1] for key, value in values.items()}
    for key, texts in (lists or {}).items():
        values[key] = separator.join(quoted(generator, text) for text in texts)
    return read_file(path) % values


def quoted(generator, text):
    """A text without control characters as a quoted string."""
    return '"%s"' % re.sub(SPECIAL[generator.SYNTAX], r'\\\g<0>', text)
