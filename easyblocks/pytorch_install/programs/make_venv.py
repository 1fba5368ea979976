##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Makes the user's virtual environment on top of the image's Python, or checks the one that is there: `make` or `check`.

The image's Python reads it from its standard input, called by user_software.py: Python 3.8, standard library alone.
"""
import os
import site
import subprocess
import sys
import venv

ENVIRONMENT = '/user-software/venv/pytorch'
VERSION = '%d.%d' % sys.version_info[:2]
PACKAGES = os.path.join(ENVIRONMENT, 'lib', 'python' + VERSION, 'site-packages')
PYTHON = os.path.join(ENVIRONMENT, 'bin', 'python')

# Exit statuses of `check`, which neither Python nor a container runtime that fails ends with.
OUTDATED, MOVED = 3, 4

# The last by its name, so that links of packages under development come before it.
PATHS = os.path.join(PACKAGES, 'zz_image.pth')

# Code that Python runs at its start, a line each. What `pip install --user` installs comes before the image's packages,
# as it does where those are not in a virtual environment.
USER_SITE = """import os, site; path = site.check_enableusersite() and site.getusersitepackages(); \
path and os.path.isdir(path) and site.addsitedir(path)
"""
# Those in turn come after the environment's, even if the image has them on PYTHONPATH.
IMAGE_SITE = """import site, sys; sys.path[:] = [path for path in sys.path if path != %(path)r]; \
site.addsitedir(%(path)r)
"""


def make():
    """Make the environment with the image's packages behind its own; the few files that it needs, and no more."""
    venv.EnvBuilder(system_site_packages=True, symlinks=True).create(ENVIRONMENT)
    with open(PATHS, 'w') as file:
        file.write(paths())
    if runs('import pip'):
        # for the image's own pip, which installs into the environment of its Python: pip_command.py fills them
        for name in ('pip', 'pip3', 'pip' + VERSION):
            with open(os.path.join(ENVIRONMENT, 'bin', name), 'w'):
                pass
    else:
        subprocess.run([PYTHON, '-I', '-m', 'ensurepip', '--default-pip'], check=True)
    versioned = os.path.join(ENVIRONMENT, 'bin', 'python' + VERSION)
    if not os.path.lexists(versioned):  # by Python 3.8 and 3.9
        os.symlink('python3', versioned)


def check():
    """
    Find out, without changing anything, whether the environment there is one for this image.

    End with OUTDATED unless it runs this Python, and with MOVED unless it leads to this Python's packages.
    """
    if not os.path.isdir(PACKAGES) or not runs('import sys; assert sys.prefix == %r' % ENVIRONMENT):
        sys.exit(OUTDATED)
    there = ''
    if os.path.exists(PATHS):
        with open(PATHS) as file:
            there = file.read()
    if there != paths():
        sys.exit(MOVED)


def paths():
    """Lines that lead to the image's packages where an environment sees none of them, or sees them before its own."""
    directories = [os.path.abspath(path) for path in os.environ.get('PYTHONPATH', '').split(os.pathsep)
                   if os.path.basename(path.rstrip(os.sep)) in ('site-packages', 'dist-packages')]
    if sys.prefix != sys.base_prefix:  # in a virtual environment: new ones see only what is below that
        directories += [path for path in site.getsitepackages() if path.startswith(sys.prefix)]
    directories = [path for path in dict.fromkeys(directories) if os.path.isdir(path)]
    return ''.join([USER_SITE] + [IMAGE_SITE % {'path': path} for path in directories]) if directories else ''


def runs(code):
    """Whether the environment's Python runs this code."""
    return os.path.exists(PYTHON) and subprocess.run(
        [PYTHON, '-I', '-c', code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


if __name__ == '__main__':
    {'make': make, 'check': check}[sys.argv[1]]()
