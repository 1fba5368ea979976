# SPDX-License-Identifier: GPL-2.0-only
"""
Module statements of the interface: those of every module, and those of images.
"""
import hashlib
import os
import re
import shlex

from easybuild.tools.config import install_path

from pytorch_install.modulefiles.statements import pushenv, template
from pytorch_install.runtime import HELD
from pytorch_install.tree import PARTS

# File in the installation with the module's variables, for commands that run by their path without it.
RECORDED = 'module.bash'

RUNTIMES = {'cuda': 'CUDA', 'rocm': 'ROCm'}

# Variables that name a file of the host with which pip and other programs connect to servers, for example certificates
# of a private authority. The image may lack it, or have another file at its path.
CONNECTION_FILES = ['PIP_CERT', 'PIP_CLIENT_CERT', 'PIP_CONFIG_FILE', 'SSL_CERT_FILE', 'REQUESTS_CA_BUNDLE',
                    'CURL_CA_BUNDLE', 'GIT_SSL_CAINFO', 'AWS_CA_BUNDLE']

# Variables that name a directory of the host for temporary files and caches, which programs in the image write to.
CACHES = ['TMPDIR', 'XDG_CACHE_HOME', 'PIP_CACHE_DIR', 'UV_CACHE_DIR', 'HF_HOME', 'HF_HUB_CACHE', 'HF_DATASETS_CACHE',
          'TORCH_HOME', 'TORCHINDUCTOR_CACHE_DIR', 'TRITON_CACHE_DIR', 'MIOPEN_USER_DB_PATH', 'CUDA_CACHE_PATH',
          'MPLCONFIGDIR', 'WANDB_DIR', 'WANDB_CACHE_DIR', 'NLTK_DATA', 'RAY_TMPDIR']

# Top-level directories that an image has itself.
OF_IMAGES = 'bin boot dev etc lib lib32 lib64 libx32 opt proc root run sbin sys tmp usr var'


def shared_interface(generator, name, version, installdir, activation, cluster):
    """
    Variables of the installation, directories for users' packages, and the cluster profile.

    :param activation: commands that activate the environment, by the variables that hold them
    """
    txt = ''
    directories = {'CONTAINERROOT': ''}
    for part in PARTS:
        directories.update({part.upper(): part, part.upper() + name.upper(): part})
    for variable, path in directories.items():
        txt += generator.set_environment(variable, {'value': path, 'pushenv': True}, relpath=True)
    # the user's shell expands a $NAME in it
    txt += pushenv(generator, activation)
    # of an image of others, and of an earlier installation (with --module-only): in the others, Python changes pip
    is_hooked = os.path.exists(os.path.join(installdir, HELD, 'hooked'))
    held = {name: path for name, path in {'PIP_CONSTRAINT': 'constraints.txt', 'PIP_FIND_LINKS': HELD}.items()
            if not is_hooked and os.path.exists(os.path.join(installdir, path))}
    txt += template(generator, 'packages', {'variables': list(held), 'paths': list(held.values())},
                    **user_base(name, version, installdir))
    # the cluster profile compares it with what the site's driver supports; without `none`, it would read that of the
    # module that this one replaces, which Environment Modules keep in env (module switch)
    txt += generator.set_environment('__PYTORCH_RUNTIME', gpu_runtime(version) or 'none')
    txt += template(generator, 'active')
    # last, so that a profile of the site takes precedence
    txt += generator.append_paths('MODULEPATH', ['modulefiles'])
    return txt + generator.load_module('cluster/' + cluster, recursive_unload=True)


def user_base(name, version, installdir):
    """Where `pip install --user` writes: a directory below the user's home, and the part for this installation."""
    return {'directory': os.path.join('.local', 'easybuild', name, version),
            'identity': hashlib.sha256(installdir.encode()).hexdigest()[:8]}


def recorded_variables(installdir, name, version, more):
    """Shell code with the variables that a module of a Python environment sets, and `more`, for launch.bash."""
    variables = {'EBROOT' + name.upper(): installdir, 'EBVERSION' + name.upper(): version, 'CONTAINERROOT': installdir,
                 **{part.upper(): os.path.join(installdir, part) for part in PARTS}, **more}
    lines = ["export %s=%s" % (variable, shlex.quote(value)) for variable, value in variables.items()]
    # the same directory as packages.lua
    lines += ['PYTHONUSERBASE=${HOME:-/}/%(directory)s' % user_base(name, version, installdir),
              '[ -d "$PYTHONUSERBASE" ] && [ ! -d "$PYTHONUSERBASE-%(identity)s" ] || PYTHONUSERBASE+=-%(identity)s'
              % user_base(name, version, installdir), 'export PYTHONUSERBASE']
    return '\n'.join(lines) + '\n'


def installation_values(name, version, installdir, recipe):
    """What commands in bin/ need when they start without the module, by the variables of libexec/enter."""
    return {'packages': '%(directory)s-%(identity)s' % user_base(name, version, installdir),
            'binds': [install_path('software'), install_path('data'), *recipe.get('binds', [])],
            'files': CONNECTION_FILES + CACHES, 'gpu': recipe['gpu'],
            'image': recipe.get('image')}


def gpu_runtime(version):
    """CUDA or ROCm and its version by a module's full version, such as 'ROCm 6.0' for 2.3.1-rocm-6.0.3-..., or None."""
    found = re.search(r'-(cuda|rocm)-(\d+\.\d+)', version)
    return '%s %s' % (RUNTIMES[found.group(1)], found.group(2)) if found else None


def image_interface(generator, recipe, image, binds, user_software):
    """The image (a file name), what it sees of the host, and its search path."""
    txt = ''
    if recipe['gpu'] == 'cuda':
        for variable in ('SINGULARITY_NV', 'APPTAINER_NV'):
            txt += generator.set_environment(variable, {'value': '1', 'pushenv': True})
    lists = {'central_images': recipe['central_images'], 'binds': binds, 'connection_files': CONNECTION_FILES,
             'caches': CACHES}
    return txt + template(generator, 'container', lists, image=image, easyconfig=os.path.basename(recipe.path),
                          of_images=OF_IMAGES, user_software=user_software, software=install_path('software'),
                          data=install_path('data'))


def mounts_interface(generator, binds):
    """
    What an image sees of the host, for programs that mount only the paths in their options.

    :param binds: paths of the host that the image sees too, `path` or `path:target`
    """
    return template(generator, 'mounts', {'binds': binds}, software=install_path('software'), data=install_path('data'))
