# SPDX-License-Identifier: GPL-2.0-only
"""
EasyBuild support for software in a Python environment that a requirements lock with hashes describes.

Wheels are downloaded and verified in the checksum step; later steps work offline. The environment is a Python of its
own, a copy of the host's: virtual environments on top inherit its packages, as they do from the base of a Python alone.
"""
import collections
import glob
import json
import os
import platform
import re
import shutil
import sys
import tempfile

from easybuild.framework.easyblock import EasyBlock
from easybuild.framework.easyconfig import CUSTOM
from easybuild.framework.easyconfig.easyconfig import letter_dir_for
from easybuild.tools.build_log import EasyBuildError, print_msg, print_warning
from easybuild.tools.config import source_paths
from easybuild.tools.filetools import compute_checksum, mkdir, verify_checksum, which, write_file
from easybuild.tools.run import run_shell_cmd

# A line of a lock; without a hash, the wheel is trusted only from the recipe's 'wheel_index'. Of other lines that pip
# accepts, options and URLs download from elsewhere, or run code of the package.
PIN = re.compile(r'(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)'
                 r'(?P<hashes>( --hash=sha256:[0-9a-f]{64})*)')

# Platform tags of wheels, from the oldest to the newest glibc (PEP 600); `linux` is that of some builds for ROCm.
MANYLINUX = ['linux', 'manylinux1', 'manylinux2010', 'manylinux2014', *('manylinux_2_%d' % n for n in range(5, 29))]

# pip without configuration and offline, and without settings for other installations.
OFFLINE = {'PIP_CONFIG_FILE': os.devnull, 'PIP_NO_INDEX': '1'}
FOREIGN = dict.fromkeys(['PIP_CONSTRAINT', 'PIP_BUILD_CONSTRAINT', 'PIP_REQUIREMENT', 'PIP_REQUIRE_HASHES'])

# Prints where a Python has its parts, and which of its compiled modules can be imported.
FACTS = """import importlib, json, os, sys, sysconfig
directory = next(path for path in sys.path if os.path.basename(path) == 'lib-dynload')
names, modules = {name.partition('.')[0] for name in os.listdir(directory)}, []
for name in sorted(names):
    try:
        importlib.import_module(name)
        modules.append(name)
    except Exception:
        pass
with open('/proc/self/maps') as maps:
    is_shared = 'libpython' in maps.read()
print(json.dumps({'executable': os.path.realpath(sys._base_executable), 'prefix': sys.base_prefix, 'search': sys.path,
                  'is_shared': is_shared, 'paths': sysconfig.get_paths(), 'modules': modules}))"""

# Entries of the standard library's directory that do not belong to it, or that nobody imports.
NOT_COPIED = ['site-packages', 'dist-packages', 'EXTERNALLY-MANAGED', 'test']

# Commands of Python itself, which the environment's own replace; packages have some that begin so too.
PYTHON = re.compile(r'python[0-9.]*|activate(\.\w+)?', re.IGNORECASE)

ACTIVATE = """# Puts the commands of this Python on PATH, unless they are there: source activate
case ":$PATH:" in *":%(bin)s:"*) ;; *) export PATH="%(bin)s:$PATH" ;; esac
type deactivate >/dev/null 2>&1 || deactivate() { unset -f deactivate; }
"""

# Wheels of one lock: the path of a requirements file for pip, with the hash of each, and their directory.
Wheels = collections.namedtuple('Wheels', 'requirements directory')


class LockedVenv(EasyBlock):
    """Support for installing the wheels of a requirements lock, a source that ends in .txt, into an environment."""

    @staticmethod
    def extra_options(extra_vars=None):
        extra_vars = EasyBlock.extra_options(extra_vars)
        extra_vars.update({
            'python_version': ['3.11', "Python of the environment (<major>.<minor>), which wheels must fit", CUSTOM],
            'wheel_index': [None, "Package index to ask after those of pip's own configuration", CUSTOM],
        })
        return extra_vars

    def __init__(self, ec, *args, **kwargs):
        """Check the recipe; let the module put bin/ on PATH, and nothing else."""
        for name, pattern, expected in [('python_version', r'\d+\.\d+', "a text with two numbers, such as '3.11'"),
                                        ('wheel_index', r'\S+', "a text with the address of an index, or None")]:
            is_right = isinstance(ec[name], str) and re.fullmatch(pattern, ec[name])
            if not (is_right or (ec[name] is None and name == 'wheel_index')):
                raise EasyBuildError("%s: %s = %r is wrong: expected %s. Correct the recipe",
                                     os.path.basename(ec.path), name, ec[name], expected)
        super().__init__(ec, *args, **kwargs)
        self.module_load_environment.replace({'PATH': ['bin']})
        self.wheels = None

    @property
    def host_python(self):
        """Command of the Python that makes the environment."""
        return 'python' + self.cfg['python_version']

    @property
    def environment(self):
        return os.path.join(self.installdir, 'venv')

    def checksum_step(self):
        """Verify the sources, then fetch the wheels of their lock: all later steps work offline."""
        super().checksum_step()
        locks = [source['path'] for source in self.src if source['name'].endswith('.txt')]
        if len(locks) != 1:
            raise EasyBuildError("%s must name one requirements lock (*.txt) in 'sources'; found: %s", self.cfg.path,
                                 ', '.join(locks) or 'none')
        self.fetch_lock(locks[0])

    def fetch_lock(self, path):
        """Fetch the wheels of a lock, unless they are on the source path."""
        directories = [os.path.join(place, letter_dir_for(self.name), self.name, 'wheels') for place in source_paths()]
        self.wheels = (Wheels(path, directories[0]) if self.dry_run else
                       fetch_wheels(path, directories, self.cfg['python_version'], self.cfg['wheel_index']))

    def extract_step(self):
        """Leave the sources where they are."""
        for source in self.src:
            source['finalpath'] = self.builddir

    def configure_step(self):
        """Check for the Python that the wheels are locked for."""
        if not which(self.host_python):
            raise EasyBuildError("%s not found on PATH: the wheels are locked for it. Load a module that has it, or "
                                 "lock the requirements for another version and set 'python_version'", self.host_python)

    def build_step(self):
        """Wheels are built."""

    def install_step(self):
        """Make the environment, and links to its commands; loading the module does not replace the user's Python."""
        make_environment(self.host_python, self.environment, self.wheels)
        make_base(self.host_python, self.environment)
        mkdir(os.path.join(self.installdir, 'bin'))
        for path in glob.glob(os.path.join(glob.escape(self.environment), 'bin', '*')):
            name = os.path.basename(path)
            if not (PYTHON.fullmatch(name) or re.fullmatch('pip[0-9.]*', name)):
                os.symlink(os.path.join(os.pardir, 'venv', 'bin', name), os.path.join(self.installdir, 'bin', name))

    def sanity_check_step(self, custom_paths=None, custom_commands=None, **kwargs):
        """Check that the packages fit together."""
        paths = custom_paths or {'files': ['venv/bin/python'], 'dirs': ['bin']}
        commands = custom_commands or [os.path.join(self.environment, 'bin', 'python') + ' -I -m pip --isolated check']
        super().sanity_check_step(custom_paths=paths, custom_commands=commands, **kwargs)


class Pin(collections.namedtuple('Pin', 'line name version hashes')):
    """One package of a lock: line number, name, version, and the SHA-256 of its wheels."""

    def __str__(self):
        return '%s==%s' % (self.name, self.version)


def distribution(name, version):
    """Name and version of a package, as in file names of wheels (PEP 427 and PEP 503)."""
    return re.sub(r'[-_.]+', '_', name).lower(), version.lower()


def read_lock(path):
    """The pins of a lock; EasyBuildError with the line of anything but pins, comments and blank lines."""
    with open(path, 'rb') as file:
        content = file.read()
    try:
        lines = content.decode('utf-8-sig').splitlines()
    except UnicodeDecodeError as error:
        raise EasyBuildError("%s: invalid UTF-8 at byte %d. Convert the lock.", path, error.start) from error
    pins, beginning = {}, ''
    for number, line in enumerate(lines, 1):
        text = re.sub(r'(^|\s)#.*', '', line)
        beginning += text[:-1] + ' ' if text.endswith('\\') else text
        if text.endswith('\\') and number < len(lines):
            continue
        requirement, beginning = ' '.join(beginning.split()), ''
        found = PIN.fullmatch(requirement)
        if requirement and not found:
            raise EasyBuildError("%s: line %d: `%s` is not one exact version with SHA-256 hashes. A lock has only "
                                 "lines `name==version --hash=sha256:<hash>`; `pip hash <wheel>` prints the hash.",
                                 path, number, requirement)
        if requirement:
            pin = Pin(number, found['name'], found['version'], re.findall('[0-9a-f]{64}', found['hashes']))
            first = pins.setdefault(distribution(pin.name, '')[0], pin)
            if first is not pin:
                raise EasyBuildError("%s: line %d: %s is in line %d already. Remove one of them.",
                                     path, number, pin.name, first.line)
    return list(pins.values())


def requirements(pins):
    """The text of a requirements file for pip."""
    return ''.join(' '.join([str(pin)] + ['--hash=sha256:' + value for value in pin.hashes]) + '\n' for pin in pins)


def fetch_wheels(lock, directories, python_version, index=None):
    """
    Download the wheels that a lock names and verify their hashes, unless one of the directories has them; return them.

    :param lock: path of the requirements lock
    :param directories: where wheels may be; downloads go to the first that is writable
    :param python_version: Python (<major>.<minor>) that the wheels must fit
    :param index: package index to try after those of pip's configuration
    """
    pins, name = read_lock(lock), os.path.basename(lock)
    unhashed = [pin for pin in pins if not pin.hashes]
    if unhashed:
        verify_checksum(str(unhashed[0]), None)  # an error with --enforce-checksums
        print_warning("%s has no hash of %s: not verified", name, ', '.join(map(str, unhashed)))
    directory = next((path for path in directories if has_wheels(pins, path, python_version)), None)
    if directory:
        print_msg("wheels of %s: all in %s" % (name, directory))
    else:
        directory = next((path for path in directories if is_writable(path)), None)
        if not directory:
            raise EasyBuildError("No writable directory for the wheels of %s: %s. Put a directory of your own "
                                 "first on EasyBuild's --sourcepath.", lock, ', '.join(directories))
        mkdir(directory, parents=True)
        present = [path for path in directories if os.path.isdir(path)]
        # not the destination: pip looks there anyway, and fails on a wheel with another hash if it is also named here
        others = find_links(path for path in present if path != directory)
        unhashed = [pin for pin in unhashed if not has_wheels([pin], directory, python_version)]
        if unhashed and not index:
            raise EasyBuildError("%s: line %d: no hash of %s. Add --hash=sha256:<hash>, or set 'wheel_index' in the "
                                 "recipe to the index that is trusted for it.", lock, unhashed[0].line, unhashed[0])
        # only from that index: another one may have a different file of the same name and version
        download(lock, unhashed, directory, python_version, [(index, ['--index-url', index])])
        attempts = [("those fetched before", ['--no-index', *find_links(present)]), ("pip's own configuration", others)]
        attempts += [(index, [*others, '--extra-index-url', index])] if index else []
        download(lock, [pin for pin in pins if pin.hashes], directory, python_version, attempts, '--require-hashes')
    # pip compares again when it installs: this private copy has the hash of each wheel
    private = os.path.join(tempfile.mkdtemp(), name)
    write_file(private, requirements(
        pin if pin.hashes else pin._replace(hashes=list(map(sha256, wheels_of(pin, directory)))) for pin in pins))
    return Wheels(private, directory)


def is_writable(directory):
    """Whether this user can write to a directory, or can create it."""
    while not os.path.exists(directory):
        directory = os.path.dirname(directory)
    return os.path.isdir(directory) and os.access(directory, os.W_OK | os.X_OK)


def find_links(directories):
    return [option for path in directories for option in ('--find-links', path)]


def download(lock, pins, directory, python_version, attempts, *options):
    """Run `pip download` for pins; `attempts` are origins, each with a name and pip's options."""
    platforms = ['--platform=%s_%s' % (tag, platform.machine()) for tag in MANYLINUX]

    def pip(pins, *where):
        path = os.path.join(tempfile.mkdtemp(), os.path.basename(lock))
        write_file(path, requirements(pins))
        return run([sys.executable, '-m', 'pip', 'download', '--no-deps', '--only-binary=:all:', '--python-version',
                    python_version, *platforms, '--dest', directory, '-r', path, *where, *options], FOREIGN,
                   fail_on_error=False)

    for origin, where in attempts if pins else []:
        print_msg("wheels of %s: trying %s..." % (os.path.basename(lock), origin))
        if pip(pins, *where).exit_code == 0:
            return
    # one by one: pip stops at the first that fails; wheels that were downloaded are kept
    for pin in pins:
        result = not has_wheels([pin], directory, python_version) and pip([pin], *where, '--retries', '1')
        if result and result.exit_code != 0:
            errors = re.findall(r"^ERROR: .*|Got +[0-9a-f]{64}|connection broken by '.*", result.output, re.MULTILINE)
            raise EasyBuildError("%s: line %d: no wheel of %s for Python %s on %s: %s. Correct the lock, or put the "
                                 "wheel into %s.", lock, pin.line, pin, python_version, platform.machine(),
                                 '; '.join(dict.fromkeys(errors)) or result.output[-200:], directory)


def sha256(path):
    return compute_checksum(path, 'sha256')


def has_wheels(pins, directory, python_version):
    """Whether a directory has a wheel for every pin, with one of its hashes; pip would take seconds for that."""
    # a lock has a hash for each machine; without a choice, pip decides whether the wheel fits this Python
    return all(any(not pin.hashes or sha256(path) in pin.hashes
                   for path in wheels_of(pin, directory, None if len(pin.hashes) == 1 else python_version))
               for pin in pins)


def wheels_of(pin, directory, python_version=None):
    """Paths of the wheels in a directory that have a pin's name and version, and fit; see `fits`."""
    names = [name for name in os.listdir(directory) if name.endswith('.whl')] if os.path.isdir(directory) else []
    return [os.path.join(directory, name) for name in sorted(names)
            if distribution(*name.split('-')[:2]) == distribution(pin.name, pin.version)
            and name.count('-') >= 4 and fits(name, python_version)]


def fits(wheel, python_version=None):
    """Whether a wheel is for this machine and, if given, for a version of Python; False if only pip can decide."""
    pythons, abi, systems = wheel[:-len('.whl')].split('-')[-3:]
    if not any(system == 'any' or system.endswith('_' + platform.machine()) for system in systems.split('.')):
        return False
    if not python_version:
        return True
    minor = int(python_version.partition('.')[2])
    # wheels of the stable ABI fit their Python and all later ones (PEP 425)
    minors = range(2, minor + 1) if 'abi3' in abi.split('.') else [minor]
    return bool({'py3', *('cp3%d' % number for number in minors)} & set(pythons.split('.')))


def run(words, variables=None, **options):
    """Run a command, a list of words, with EasyBuild's run_shell_cmd; None unsets a variable. Return its result."""
    environ = {**os.environ, **(variables or {})}
    # without use_bash=False, EasyBuild 5.4 runs bash with the words of a list as arguments
    return run_shell_cmd(list(words), env={name: value for name, value in environ.items() if value is not None},
                         use_bash=False, hidden=True, **options)


def make_environment(python, directory, wheels, compiles=True):
    """Make a virtual environment and install locked Wheels into it; `compiles`: whether pip writes bytecode."""
    run([python, '-m', 'venv', directory])
    # without the user's pip configuration; a package that the venv was seeded with is replaced, not overwritten
    run([os.path.join(directory, 'bin', 'pip'), '--isolated', 'install', '--quiet', '--no-index', '--find-links',
         wheels.directory, '--require-hashes', '--no-deps', *([] if compiles else ['--no-compile']),
         '-r', wheels.requirements], OFFLINE)


def facts(python):
    """FACTS of a Python, as a dictionary; None in a dry run."""
    output = run([python, '-I', '-c', FACTS], split_stderr=True).output
    return json.loads(output) if output else None


def make_base(python, directory):
    """
    Turn a virtual environment into a Python of its own; EasyBuildError if that lacks modules of the host's.

    An interpreter that loads libpython gets links to the standard library: an update of the host's Python replaces both
    together. Any other is copied with its standard library, and keeps its release.

    :param python: command of the Python that the environment was made with
    """
    host = facts(python)
    if host is None:
        return
    version, commands = os.path.basename(host['paths']['stdlib']), os.path.join(directory, 'bin')
    packages = os.path.join(directory, 'lib', version, 'site-packages')
    os.remove(os.path.join(directory, 'pyvenv.cfg'))
    for name in filter(PYTHON.fullmatch, os.listdir(commands)):
        os.remove(os.path.join(commands, name))
    write_file(os.path.join(commands, 'activate'), ACTIVATE % {'bin': commands})
    shutil.copy2(host['executable'], os.path.join(commands, version))
    for name in ('python', 'python3'):
        os.symlink(version, os.path.join(commands, name))
    add_library(host, directory, os.path.dirname(packages))
    base = facts(os.path.join(commands, version))
    # distributions have other directories for the packages of a base (Debian: local/lib/python3.11/dist-packages)
    for kind, own in (('purelib', packages), ('platlib', packages), ('scripts', commands)):
        path = base['paths'][kind]
        if not os.path.lexists(path):
            mkdir(os.path.dirname(path), parents=True)
            os.symlink(os.path.relpath(own, os.path.dirname(path)), path)
    base = facts(os.path.join(commands, version))
    missing = sorted(set(host['modules']) - set(base['modules']))
    if missing or os.path.realpath(packages) not in map(os.path.realpath, base['search']):
        raise EasyBuildError("%s does not work as a copy in %s: %s. Load a module of another Python",
                             host['executable'], directory, ', '.join(missing) or "it does not search site-packages")


def add_library(host, directory, library):
    """Link or copy the host's standard library, its headers, and shared libraries of its prefix."""
    for name in sorted(set(os.listdir(host['paths']['stdlib'])) - set(NOT_COPIED)):
        path, target = os.path.join(host['paths']['stdlib'], name), os.path.join(library, name)
        if host['is_shared'] or name.startswith('config-'):
            os.symlink(path, target)
        elif os.path.isdir(path):
            shutil.copytree(path, target, ignore_dangling_symlinks=True, ignore=shutil.ignore_patterns('test', 'tests'))
        else:
            shutil.copy2(path, target)
    if host['prefix'] != '/usr':  # conda's interpreter looks for libraries beside itself ($ORIGIN/../lib)
        for path in glob.glob(os.path.join(glob.escape(host['prefix']), 'lib', '*.so*')):
            os.symlink(path, os.path.join(directory, 'lib', os.path.basename(path)))
    headers = os.path.join(directory, 'include', os.path.basename(host['paths']['include']))
    mkdir(os.path.dirname(headers), parents=True)
    if os.path.isdir(headers):
        os.rmdir(headers)  # empty: since Python 3.11, `python -m venv` makes it
    os.symlink(host['paths']['include'], headers)
