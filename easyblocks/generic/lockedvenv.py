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

# pip without configuration and offline, and without settings for other installations.
OFFLINE = {'PIP_CONFIG_FILE': os.devnull, 'PIP_NO_INDEX': '1'}
FOREIGN = dict.fromkeys(['PIP_CONSTRAINT', 'PIP_BUILD_CONSTRAINT', 'PIP_REQUIREMENT', 'PIP_REQUIRE_HASHES'])
# pip with one index: those of the user's configuration can offer the same name and version.
ALONE = {'PIP_CONFIG_FILE': os.devnull, 'PIP_EXTRA_INDEX_URL': None, 'PIP_FIND_LINKS': None}

# Prints where a Python has its parts, and which of its compiled modules can be imported.
FACTS = """import contextlib, json, os, sys, sysconfig
modules = []
for name in os.listdir(next(path for path in sys.path if os.path.basename(path) == 'lib-dynload')):
    with contextlib.suppress(Exception):
        __import__(name.partition('.')[0])
        modules.append(name)
with open('/proc/self/maps') as maps:
    is_shared = 'libpython' in maps.read()
print(json.dumps({'executable': os.path.realpath(sys._base_executable), 'prefix': sys.base_prefix, 'search': sys.path,
                  'is_shared': is_shared, 'paths': sysconfig.get_paths(), 'modules': modules}))"""

# Entries of the standard library's directory that do not belong to it, or that nobody imports.
NOT_COPIED = {'site-packages', 'dist-packages', 'EXTERNALLY-MANAGED', 'test'}

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
        for name, pattern in (('python_version', r'\d+\.\d+'), ('wheel_index', r'\S+')):
            default, expected, _ = self.extra_options()[name]
            if not (ec[name] == default or isinstance(ec[name], str) and re.fullmatch(pattern, ec[name])):
                raise EasyBuildError("%s: %s = %r is wrong: expected a text, %s. Correct the recipe",
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

    def sanity_check_step(self, **kwargs):
        """Check that the packages fit together."""
        paths = {'files': ['venv/bin/python'], 'dirs': ['bin']}
        commands = [os.path.join(self.environment, 'bin', 'python') + ' -I -m pip --isolated check']
        super().sanity_check_step(**{'custom_paths': paths, 'custom_commands': commands, **kwargs})


def read_lock(path):
    """The pins of a lock, as matches of PIN; EasyBuildError for anything but pins, comments and blank lines."""
    with open(path, encoding='utf-8-sig', errors='replace') as file:
        content = re.sub(r'(^|[ \t])#.*', '', file.read(), flags=re.MULTILINE)
    lines = [' '.join(line.split()) for line in content.replace('\\\n', ' ').split('\n')]
    for line in filter(None, lines):
        if not PIN.fullmatch(line):
            raise EasyBuildError("%s: `%s` is not one exact version with SHA-256 hashes. A lock has only lines "
                                 "`name==version --hash=sha256:<hash>`; `pip hash <wheel>` prints the hash", path, line)
    return [PIN.fullmatch(line) for line in lines if line]


def fetch_wheels(lock, directories, python_version, index=None):
    """
    Download the wheels that a lock names and verify their hashes, unless they are on the source path; return them.

    :param lock: path of the requirements lock
    :param directories: where wheels may be; downloads go to the first
    :param python_version: Python (<major>.<minor>) that the wheels must fit
    :param index: package index to try after those of pip's configuration
    """
    pins, directory, name = read_lock(lock), directories[0], os.path.basename(lock)
    hashed, unhashed = ([pin for pin in pins if bool(pin['hashes']) == has] for has in (True, False))
    private = os.path.join(tempfile.mkdtemp(), name)

    def download(pins, origins):
        """Run `pip download`, with the options of one origin after the other until it succeeds; pip compares hashes."""
        write_file(private, ''.join(pin[0] + '\n' for pin in pins))
        for origin, options in origins:
            print_msg("wheels of %s: trying %s..." % (name, origin))
            result = run([sys.executable, '-m', 'pip', 'download', '--no-deps', '--only-binary=:all:', '--dest',
                          directory, '--python-version', python_version, '-r', private, *options],
                         {**FOREIGN, **(ALONE if '--index-url' in options else {})}, fail_on_error=False)
            if result.exit_code == 0:
                return
        errors = re.findall(r"^ERROR: .*|^    +\S.*|connection broken by '.*", result.output, re.MULTILINE)
        reason = ' '.join((' '.join(dict.fromkeys(errors)) or result.output[-200:]).split())
        raise EasyBuildError("%s: no wheels for Python %s: %s. Correct the lock or 'wheel_index', or put the wheels "
                             "into %s", lock, python_version, reason, directory)

    mkdir(directory, parents=True)
    # without the user's configuration, which may have other wheels
    present = ("those fetched before", ['--isolated', '--no-index', *find_links(directories)])
    if unhashed:
        names = ', '.join(pin[0] for pin in unhashed)
        verify_checksum(names, None)  # an error with --enforce-checksums
        print_warning("%s has no hash of %s: not verified", name, names)
        # only from that index: another one may have a different file of the same name and version
        download(unhashed, [present, *([(index, ['--index-url', index])] if index else [])])
    if hashed:
        # not the destination: pip looks there anyway, and fails on a wheel with another hash if it is also named here
        others = find_links(directories[1:])
        download(hashed, [present, ("pip's own configuration", others),
                          *([(index, [*others, '--extra-index-url', index])] if index else [])])
    # pip compares again when it installs: this private copy has the hash of each wheel
    lines = [pin[0] for pin in hashed]
    for pin in unhashed:
        file = re.compile('%s-%s-.*whl' % (re.sub('[-_.]+', '[-_.]+', pin['name']), re.escape(pin['version'])), re.I)
        lines.append(' --hash=sha256:'.join([pin[0]] + [compute_checksum(os.path.join(directory, wheel))
                                                        for wheel in filter(file.fullmatch, os.listdir(directory))]))
    write_file(private, '\n'.join(lines) + '\n')
    return Wheels(private, directory)


def find_links(directories):
    return [option for path in directories for option in ('--find-links', path)]


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
    library = os.path.join(directory, 'lib', version)
    packages = os.path.join(library, 'site-packages')
    os.remove(os.path.join(directory, 'pyvenv.cfg'))
    for name in filter(PYTHON.fullmatch, os.listdir(commands)):
        os.remove(os.path.join(commands, name))
    write_file(os.path.join(commands, 'activate'), ACTIVATE % {'bin': commands})
    shutil.copy2(host['executable'], os.path.join(commands, version))
    for name in ('python', 'python3'):
        os.symlink(version, os.path.join(commands, name))
    for name in set(os.listdir(host['paths']['stdlib'])) - NOT_COPIED:
        path = os.path.join(host['paths']['stdlib'], name)
        if host['is_shared'] or name.startswith('config-'):
            os.symlink(path, os.path.join(library, name))
        elif os.path.isdir(path):
            shutil.copytree(path, os.path.join(library, name), ignore_dangling_symlinks=True,
                            ignore=shutil.ignore_patterns('test', 'tests'))
        else:
            shutil.copy2(path, library)
    if host['prefix'] != '/usr':  # conda's interpreter looks for libraries beside itself ($ORIGIN/../lib)
        for path in glob.glob(os.path.join(glob.escape(host['prefix']), 'lib', '*.so*')):
            os.symlink(path, os.path.join(directory, 'lib', os.path.basename(path)))
    paths = facts(os.path.join(commands, version))['paths']
    if os.path.isdir(paths['include']):
        os.rmdir(paths['include'])  # empty: since Python 3.11, `python -m venv` makes it
    # distributions have other directories for the packages of a base (Debian: local/lib/python3.11/dist-packages)
    for kind, own in (('include', None), ('purelib', packages), ('platlib', packages), ('scripts', commands)):
        path = paths[kind]
        if not os.path.lexists(path):
            mkdir(os.path.dirname(path), parents=True)
            os.symlink(os.path.relpath(own, os.path.dirname(path)) if own else host['paths'][kind], path)
    base = facts(os.path.join(commands, version))
    missing = sorted(set(host['modules']) - set(base['modules']))
    if missing or os.path.realpath(packages) not in map(os.path.realpath, base['search']):
        raise EasyBuildError("%s does not work as a copy in %s: %s. Load a module of another Python",
                             host['executable'], directory, ', '.join(missing) or "it does not search site-packages")
