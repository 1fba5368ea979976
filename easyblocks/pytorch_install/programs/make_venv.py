# SPDX-License-Identifier: BSD-3-Clause
"""
Makes the users' virtual environment on top of the image's Python, or checks an existing one: `make` or `check`.

A second argument is a line that its Python runs at startup too.
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

# Exit status of `check`, different from those of failures of Python and container runtimes.
OUTDATED = 3

# Sorts last, so that editable packages precede it.
PATHS = os.path.join(PACKAGES, 'zz_image.pth')

# Lines of code that Python runs at startup. Packages of `pip install --user` precede the image's packages, as they do
# without a virtual environment; those in ~/.local, which may have another torch, are not seen. PYTHONUSERBASE may name
# this environment: then Python reads this line again.
USER_SITE = """import os, site, sys; module = os.environ.get('PYTHONUSERBASE'); \
path = module and site.check_enableusersite() and site.getusersitepackages(); \
path and os.path.isdir(path) and path not in sys.path and site.addsitedir(path); \
module or setattr(site, 'ENABLE_USER_SITE', False)
"""
# The image's packages follow the environment's, even if the image has them on PYTHONPATH.
IMAGE_SITE = """import site, sys; sys.path[:] = [path for path in sys.path if path != %(path)r]; \
site.addsitedir(%(path)r)
"""

# Those of its base too, which Python puts first if PYTHONPATH names them.
BASE_SITE = """import sys; sys.path.sort(key=%(base)r.__contains__)
"""


def make():
    """Make the environment, with the image's packages after its own."""
    venv.EnvBuilder(system_site_packages=True, symlinks=True).create(ENVIRONMENT)
    with open(PATHS, 'w') as file:
        file.write(paths())
    if runs('import pip'):
        for name in ('pip', 'pip3', 'pip' + VERSION):
            command = os.path.join(ENVIRONMENT, 'bin', name)
            with open(os.open(command, os.O_CREAT | os.O_WRONLY, 0o755), 'w') as file:
                file.write('#!%s\nimport sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n' % PYTHON)
    else:
        subprocess.run([PYTHON, '-I', '-m', 'ensurepip', '--default-pip'], check=True)
    versioned = os.path.join(ENVIRONMENT, 'bin', 'python' + VERSION)
    if not os.path.lexists(versioned):  # Python 3.8 and 3.9 do not make it
        os.symlink('python3', versioned)


def check():
    """
    Check whether the existing environment fits this image, without changing it.

    Exit with OUTDATED unless it runs this Python and sees this Python's packages.
    """
    code = 'import sys; assert sys.prefix == %r and {*%r} <= {*sys.path}' % (ENVIRONMENT, directories())
    if not (os.path.isdir(PACKAGES) and runs(code)):
        sys.exit(OUTDATED)


def paths():
    """Lines that add the image's packages, if an environment lacks them, or has them before its own."""
    lines = USER_SITE + ''.join(IMAGE_SITE % {'path': path} for path in directories())
    return lines + BASE_SITE % {'base': tuple(site.getsitepackages())} + ''.join(sys.argv[2:])


def directories():
    """Directories of the image's packages that an environment on its Python does not see by itself."""
    found = [os.path.abspath(path) for path in os.environ.get('PYTHONPATH', '').split(os.pathsep)
             if os.path.basename(path.rstrip(os.sep)) in ('site-packages', 'dist-packages')]
    if sys.prefix != sys.base_prefix:  # in a virtual environment: a new one sees only the packages of its base
        found += [path for path in site.getsitepackages() if path.startswith(sys.prefix)]
    return [path for path in dict.fromkeys(found) if os.path.isdir(path)]


def runs(code):
    """Whether the environment's Python runs this code."""
    return os.path.exists(PYTHON) and subprocess.run(
        [PYTHON, '-I', '-c', code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


if __name__ == '__main__':
    if sys.argv[1] == 'make':
        make()
    else:
        check()
