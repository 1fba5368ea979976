# Copyright 2026 the authors of pytorch-easybuild
# SPDX-License-Identifier: BSD-3-Clause
"""
EasyBuild support for software in a Python environment that a lock describes: pip's pins with hashes, in a source that
ends in .txt, or pylock.toml (PEP 751), in a source that ends in .toml.

The fetch step downloads the wheels of the lock; later steps work offline.
"""
import collections
import glob
import os
import re
import sys
import tempfile

from easybuild.framework.easyblock import EasyBlock
from easybuild.framework.easyconfig import CUSTOM
from easybuild.framework.easyconfig.easyconfig import letter_dir_for
from easybuild.tools.build_log import EasyBuildError, print_msg, print_warning
from easybuild.tools.config import source_paths
from easybuild.tools.filetools import (
    compute_checksum,
    mkdir,
    read_file,
    symlink,
    verify_checksum,
    which,
    write_file,
)
from easybuild.tools.run import run_shell_cmd

# A line of pip's pins; without a hash, the wheel is trusted only from the recipe's 'wheel_index'. Of other lines that
# pip accepts, options and URLs download from elsewhere, or run code of the package.
PIN = re.compile(r'(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)'
                 r'(?P<hashes>( --hash=sha256:[0-9a-f]{64})*)')

# A package of a lock; hashes: the SHA-256 of each of its wheels.
Pin = collections.namedtuple('Pin', 'name version hashes')

# Where pip gets wheels: words for messages, options and variables of pip.
Origin = collections.namedtuple('Origin', 'name options variables')

# What is downloaded: the path of the lock, Python's version, the directory for the wheels, and the requirements file.
Download = collections.namedtuple('Download', 'lock python_version directory requirements')

# Wheels of one lock: the path of a requirements file for pip, with the hash of each, and their directory.
Wheels = collections.namedtuple('Wheels', 'requirements directory')

# pip without configuration and offline, and without settings for other installations.
OFFLINE = {'PIP_CONFIG_FILE': os.devnull, 'PIP_NO_INDEX': '1'}
FOREIGN = dict.fromkeys(['PIP_CONSTRAINT', 'PIP_BUILD_CONSTRAINT', 'PIP_REQUIREMENT', 'PIP_REQUIRE_HASHES'])
# pip with one index: those of the user's configuration can offer the same name and version.
ALONE = {'PIP_CONFIG_FILE': os.devnull, 'PIP_EXTRA_INDEX_URL': None, 'PIP_FIND_LINKS': None}

# Commands in the environment's bin/ that loading the module does not put on PATH; packages have some that begin so too.
PYTHON = re.compile(r'(python|pip)[0-9.]*|activate(\.\w+)?', re.IGNORECASE)


class LockedVenv(EasyBlock):
    """Support for installing the wheels of a lock into a Python environment."""

    @staticmethod
    def extra_options(extra_vars=None):
        """Easyconfig parameters of this easyblock."""
        extra_vars = EasyBlock.extra_options(extra_vars)
        extra_vars.update({
            'python_version': ['3.11', "Python of the environment (<major>.<minor>), which wheels must fit", CUSTOM],
            'wheel_index': [None, "Package index to ask after those of pip's own configuration", CUSTOM],
        })
        return extra_vars

    def __init__(self, ec, *args, **kwargs):
        """Check the recipe; let the module put bin/ on PATH, and nothing else."""
        if re.search('//[^/]*@', str(ec['wheel_index'])):
            raise EasyBuildError("%s: 'wheel_index' has a login, and all users can read recipes. pip takes logins from "
                                 "~/.netrc, and indexes from its own configuration", ec.path)
        super().__init__(ec, *args, **kwargs)
        self.module_load_environment.replace({'PATH': ['bin']})
        self.wheels = None

    @property
    def host_python(self):
        """Command of the Python that makes the environment."""
        return 'python%s' % self.cfg['python_version']

    @property
    def environment(self):
        """Directory of the environment."""
        return os.path.join(self.installdir, 'venv')

    def fetch_step(self, skip_checksums=False):
        """Fetch the sources, then the wheels of their lock: all later steps work offline."""
        super().fetch_step(skip_checksums=skip_checksums)
        lock = find_lock(self.src, self.cfg.path)
        if not lock:
            raise EasyBuildError("%s names no lock in 'sources': pins with hashes (*.txt) or pylock.toml",
                                 self.cfg.path)
        if self.dry_run:
            self.wheels = Wheels(lock['path'], wheel_directories(self.name)[0])
        elif not skip_checksums:
            self.wheels = fetch_wheels(lock['path'], wheel_directories(self.name), self.cfg['python_version'],
                                       self.cfg['wheel_index'])

    def extract_step(self):
        """Leave the sources where they are."""

    def configure_step(self):
        """Check for the Python that the wheels are locked for."""
        if not which(self.host_python):
            raise EasyBuildError("%s not found on PATH: the wheels are locked for it. Load a module that has it, or "
                                 "lock the requirements for another version and set 'python_version'", self.host_python)

    def build_step(self):
        """Build nothing: wheels are built."""

    def install_step(self):
        """Make the environment, and links to its commands; loading the module does not replace the user's Python."""
        make_environment(self.host_python, self.environment, self.wheels)
        compile_packages(self.environment)
        mkdir(os.path.join(self.installdir, 'bin'))
        for path in glob.glob(os.path.join(glob.escape(self.environment), 'bin', '*')):
            name = os.path.basename(path)
            if not PYTHON.fullmatch(name):
                symlink(os.path.join(os.pardir, 'venv', 'bin', name), os.path.join(self.installdir, 'bin', name),
                        use_abspath_source=False)

    def sanity_check_step(self, **kwargs):
        """Check that the packages fit together."""
        paths = {'files': ['venv/bin/python'], 'dirs': ['bin']}
        commands = [os.path.join(self.environment, 'bin', 'python') + ' -I -m pip --isolated check']
        super().sanity_check_step(**{'custom_paths': paths, 'custom_commands': commands, **kwargs})


def find_lock(sources, easyconfig):
    """The source (EasyBuild's record) that is a lock; None without one."""
    locks = [source for source in sources if source['name'].endswith(('.txt', '.toml'))]
    if len(locks) > 1:
        raise EasyBuildError("%s names several locks in 'sources', at most one is expected: %s", easyconfig,
                             ', '.join(source['name'] for source in locks))
    return next(iter(locks), None)


def wheel_directories(name):
    """Directories on EasyBuild's source path with wheels for software of this name; downloads go to the first."""
    directories = []
    for path in source_paths():
        directory = os.path.join(path, letter_dir_for(name), name)
        directories += [os.path.join(directory, 'wheels'), directory]
    return directories


def read_lock(path, python_version):
    """Pins of a lock that apply to a Python (<major>.<minor>) on this machine."""
    return read_pylock(path, python_version) if path.endswith('.toml') else read_pins(path)


def read_pins(path):
    """Pins of a lock for pip; EasyBuildError for anything but pins, comments and blank lines."""
    with open(path, encoding='utf-8-sig', errors='replace') as file:
        content = re.sub(r'(^|[ \t])#.*', '', file.read(), flags=re.MULTILINE)
    pins = []
    for line in content.replace('\\\n', ' ').split('\n'):
        words = line.split()
        found = PIN.fullmatch(' '.join(words))
        if found:
            pins.append(Pin(found['name'], found['version'], re.findall('[0-9a-f]{64}', found['hashes'])))
        elif words:
            raise EasyBuildError("%s: `%s` is not one exact version with SHA-256 hashes. A lock has only lines "
                                 "`name==version --hash=sha256:<hash>`; `pip hash <wheel>` prints the hash", path,
                                 ' '.join(words))
    return pins


def read_pylock(path, python_version):
    """Pins of the entries of a pylock.toml that apply; its URLs are those of whoever locked, and are ignored."""
    content = load_toml(path)
    if not str(content.get('lock-version')).startswith('1.'):
        raise EasyBuildError("%s has lock-version %s, expected 1.0. Lock again", path, content.get('lock-version'))
    releases = python_releases(python_version)
    groups = set(content.get('default-groups', []))
    markers = content.get('environments', [])
    if markers and not any(applies(marker, releases, groups, path) for marker in markers):
        raise EasyBuildError("%s is not for Python %s on this machine, but for: %s. Lock again", path, python_version,
                             ' or '.join(markers))
    pins = []
    for entry in content.get('packages', []):
        marker = entry.get('marker')
        if not marker or applies(marker, releases, groups, path):
            pins.append(pin_of(entry, path))
    return pins


def load_toml(path):
    """Content of a TOML file, with EasyBuild's own reader."""
    try:
        from easybuild.tools import tomllib
    except ImportError as error:
        raise EasyBuildError("%s: this EasyBuild does not read TOML. Use 5.4.1 or newer, or a lock of pip's pins, "
                             "`name==version --hash=sha256:<hash>`", path) from error
    try:
        return tomllib.loads(read_file(path))
    except ValueError as error:
        raise EasyBuildError("%s is not valid TOML: %s. Lock again", path, error) from error


def python_releases(python_version):
    """Release of the host's Python of this version; if it has none, the first and the last that can be."""
    command = 'python%s' % python_version
    if which(command):
        code = 'import platform; print(platform.python_version())'
        result = run([command, '-I', '-c', code], split_stderr=True, fail_on_error=False)
        if result.exit_code == 0:  # not the one of pyenv for a version that it does not have
            return [result.output.strip()]
    return ['%s.0' % python_version, '%s.99' % python_version]


def applies(marker, releases, groups, path):
    """
    Whether a marker (PEP 508) applies to releases of Python on this machine.

    :param groups: dependency groups that are installed
    :param path: the lock
    """
    # packaging, without which there is no pip: EasyBuild itself does not need it
    from pip._vendor.packaging.markers import Marker
    results = set()
    for release in releases:
        environment = {'python_version': '.'.join(release.split('.')[:2]), 'python_full_version': release, 'extra': '',
                       'extras': set(), 'dependency_groups': groups}
        try:
            results.add(Marker(marker).evaluate(environment))
        except ValueError as error:
            raise EasyBuildError("%s: pip of EasyBuild's Python cannot evaluate the marker `%s`: %s. Upgrade it, or "
                                 "lock without extras and groups", path, marker, error) from error
    if len(results) > 1:
        raise EasyBuildError("%s: `%s` depends on Python's release. Load a module of that Python first", path, marker)
    return results.pop()


def pin_of(entry, path):
    """Pin of an entry of pylock.toml."""
    hashes = [wheel['hashes'].get('sha256') for wheel in entry.get('wheels', [])]
    if 'version' not in entry or not hashes or None in hashes:
        raise EasyBuildError("%s: %s has no version, or no wheels with SHA-256: only wheels are installed. Build one, "
                             "and lock it instead of sources and directories", path, entry['name'])
    return Pin(entry['name'], entry['version'], hashes)


def fetch_wheels(lock, directories, python_version, index=None):
    """
    Download the wheels that a lock names and verify their hashes, unless they are on the source path; return them.

    :param lock: path of the lock
    :param directories: where wheels may be; downloads go to the first
    :param python_version: Python (<major>.<minor>) that the wheels must fit
    :param index: package index to try after those of pip's configuration
    """
    pins = read_lock(lock, python_version)
    hashed = [pin for pin in pins if pin.hashes]
    unhashed = [pin for pin in pins if not pin.hashes]
    name = os.path.splitext(os.path.basename(lock))[0] + '.txt'
    task = Download(lock, python_version, directories[0], os.path.join(tempfile.mkdtemp(), name))
    mkdir(task.directory, parents=True)
    # without the user's configuration, which may have other wheels
    present = Origin("those fetched before", ['--isolated', '--no-index', *find_links(directories)], {})
    if unhashed:
        names = ', '.join(map(requirement, unhashed))
        verify_checksum(names, None)  # an error with --enforce-checksums
        print_warning("%s has no hash of %s: not verified", name, names)
        # only from that index: another one may have a different file of the same name and version
        of_recipe = Origin(index, ['--index-url', index], ALONE)
        download(task, unhashed, [present, of_recipe])
    if hashed:
        # not the destination: pip looks there anyway, and fails on a wheel with another hash if it is also named here
        others = find_links(directories[1:])
        of_user = Origin("pip's own configuration", others, {})
        of_recipe = Origin(index, [*others, '--extra-index-url', index], {})
        download(task, hashed, [present, of_user, of_recipe])
    # pip compares again when it installs: this private copy has the hash of each wheel
    fetched = [pin._replace(hashes=fetched_hashes(pin, task.directory)) for pin in unhashed]
    write_requirements(task.requirements, hashed + fetched)
    return Wheels(task.requirements, task.directory)


def download(task, pins, origins):
    """Run `pip download` for pins with one origin after the other until it succeeds; pip compares hashes."""
    write_requirements(task.requirements, pins)
    for origin in origins:
        if not origin.name:  # the recipe has no index
            continue
        print_msg("wheels of %s: trying %s..." % (os.path.basename(task.lock), origin.name))
        result = run([sys.executable, '-m', 'pip', 'download', '--no-deps', '--only-binary=:all:', '--dest',
                      task.directory, '--python-version', str(task.python_version), '-r', task.requirements,
                      *origin.options], {**FOREIGN, **origin.variables}, fail_on_error=False)
        if result.exit_code == 0:
            return
    errors = re.findall(r"^ERROR: .*|^    +\S.*|connection broken by '.*", result.output, re.MULTILINE)
    reason = ' '.join(dict.fromkeys(errors)) or result.output[-200:]
    raise EasyBuildError("%s: no wheels for Python %s: %s. Correct the lock or 'wheel_index', or put the wheels into "
                         "%s", task.lock, task.python_version, ' '.join(reason.split()), task.directory)


def requirement(pin):
    """The line of a requirements file for a pin."""
    return ' --hash=sha256:'.join(['%s==%s' % (pin.name, pin.version), *pin.hashes])


def write_requirements(path, pins):
    """Write a requirements file for pip, which compares the hashes."""
    write_file(path, ''.join(requirement(pin) + '\n' for pin in pins))


def fetched_hashes(pin, directory):
    """SHA-256 of the wheels of a pin in a directory."""
    name = re.sub('[-_.]+', '[-_.]+', pin.name)
    file = re.compile('%s-%s-.*whl' % (name, re.escape(pin.version)), re.IGNORECASE)
    return [compute_checksum(os.path.join(directory, wheel)) for wheel in filter(file.fullmatch, os.listdir(directory))]


def find_links(directories):
    """Options of pip to find wheels in directories."""
    return [option for path in directories for option in ('--find-links', path)]


def run(words, variables=None, **options):
    """Run a command, a list of words, with EasyBuild's run_shell_cmd; None unsets a variable. Return its result."""
    environ = {**os.environ, **(variables or {})}
    # without use_bash=False, EasyBuild 5.4 runs bash with the words of a list as arguments
    return run_shell_cmd(list(words), env={name: value for name, value in environ.items() if value is not None},
                         use_bash=False, hidden=True, **options)


def make_environment(python, directory, wheels):
    """Make a virtual environment and install locked Wheels into it, without bytecode."""
    run([python, '-m', 'venv', directory])
    # without the user's pip configuration; a package that the venv was seeded with is replaced, not overwritten
    run([os.path.join(directory, 'bin', 'pip'), '--isolated', 'install', '--quiet', '--no-index', '--find-links',
         wheels.directory, '--require-hashes', '--no-deps', '--no-compile', '-r', wheels.requirements], OFFLINE)


def compile_packages(directory):
    """Compile the packages of an environment, but not their tests."""
    # a file of a newer Python, which some packages never import, is an error
    run([os.path.join(directory, 'bin', 'python'), '-I', '-m', 'compileall', '-q',
         '-x', 'site-packages/.*/tests?/', os.path.join(directory, 'lib')], fail_on_error=False)
