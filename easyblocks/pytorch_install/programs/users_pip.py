# SPDX-License-Identifier: BSD-3-Clause
"""
Runs at the start of each pip whose Python sees the module's torch, by a line in a .pth file: pip keeps this torch. For
`python -m uv`, it starts the module's uv.

It is independent of the pip that runs: the module's, an upgraded one, that of an environment on top. It also lets pip
upgrade and remove what `pip install --user` installed: by itself, pip takes that for packages outside of a virtual
environment (https://github.com/pypa/pip/issues/5176). Python 3.8 or newer.
"""
import atexit
import os
import re
import site
import sys
import tarfile
from ast import literal_eval
from importlib.machinery import PathFinder
from logging import getLogger
from shutil import which

HELD = os.path.dirname(os.path.abspath(__file__))
CONSTRAINTS = os.path.join(os.path.dirname(HELD), 'constraints.txt')
UV = os.path.join(os.path.dirname(HELD), 'runscripts', 'uv')

# What to do with a build that does not get this torch.
ALONE = "To build with the PyTorch module's torch: pip install --no-build-isolation, after what the build requires"

# Set by a pip that installs what a build requires: there, the module's torch is not seen without our wheel.
IS_BUILD = 'PIP_BUILD_TRACKER' in os.environ or 'PIP_REQ_TRACKER' in os.environ


def seen_packages():
    """The directory of the module's torch if this Python imports that torch, else None."""
    found = PathFinder.find_spec('torch')
    if not found:  # in users' environment, the line runs before Python adds the image's own directories
        sys.path.extend(filter(os.path.isdir, site.getsitepackages([sys.base_prefix])))
        found = PathFinder.find_spec('torch')
    with open(os.path.join(HELD, 'packages')) as file:
        packages = os.path.realpath(file.read().strip())
    return packages if found and os.path.realpath(found.origin or '').startswith(packages + os.sep) else None


def held_versions():
    """Advice, and versions of the constraints by names."""
    with open(CONSTRAINTS) as file:
        lines = file.read().splitlines()
    found = re.findall(r'^([\w-]+)==(\S+)$', '\n'.join(lines), re.MULTILINE)
    return lines[0][2:] + (' ' + ALONE if IS_BUILD else ''), dict(found)


def add_options(arguments, pip_version):
    """Add constraints and wheels to pip's arguments: unlike variables, they add to those of users and of pip.conf."""
    for position, word in enumerate(arguments[1:], 2):
        if word in ('install', 'download', 'wheel', 'lock'):
            builds = ['--build-constraint', CONSTRAINTS] if pip_version >= (25, 3) else []
            arguments[position:position] = ['--constraint', CONSTRAINTS, '--find-links', HELD, *builds]
            return


def explain_paths(arguments):
    """Print what to do about paths that only the host may have; pip reports that they do not exist."""
    created = ['-t', '--target', '--prefix', '--root', '-d', '--dest', '-w', '--wheel-dir', '--src', '--log']
    for option, path in zip(arguments, arguments[1:]):
        if path.startswith('/') and option not in created and not os.path.exists(path):
            sys.stderr.write('pip: %s is not in the image. ' % path
                             + 'Check the path, or bind its directory with APPTAINER_BIND\n')


def change_removal(packages, versions):
    """Let pip upgrade and remove the user's packages where they are, and not remove the module's torch, nor itself."""
    from pip._internal.commands import install
    from pip._internal.exceptions import InstallationError
    from pip._internal.metadata import base
    from pip._internal.req.req_uninstall import UninstallPathSet

    is_local, is_permitted, from_dist = base.is_local, UninstallPathSet._permitted, UninstallPathSet.from_dist
    decide, user_base = install.decide_user_install, os.path.realpath(site.getuserbase()) + os.sep
    of_users = ['uninstall' in sys.argv]  # an environment on top hides those that it has too

    def decide_and_note(*arguments, **options):
        of_users.append(decide(*arguments, **options))
        return of_users[-1]

    def is_users(path):
        directory, name = os.path.split(path)
        return of_users[-1] and os.path.join(os.path.realpath(directory), name).startswith(user_base)

    def from_dist_of_users(dist):
        # without the pip of an environment, `pip` would be another one, which installs elsewhere
        if 'uninstall' in sys.argv and (dist.canonical_name == 'pip' or dist.canonical_name in versions
                                        and os.path.realpath(dist.location or '') == packages):
            raise InstallationError('%s belongs to the PyTorch module and is not removed' % dist.canonical_name)
        return from_dist(dist)

    install.decide_user_install = decide_and_note
    base.is_local = lambda path: is_local(path) or is_users(path)
    UninstallPathSet._permitted = lambda paths, path: is_permitted(paths, path) or is_users(path)
    UninstallPathSet.from_dist = from_dist_of_users


def explain_builds():
    """Let pip print what to do if a build looks for a torch that it does not require, or is of a source of ours."""
    from pip._internal.exceptions import DiagnosticPipError, InstallationError

    make = DiagnosticPipError.__init__

    def make_with_hint(error, **options):
        output = str(options.get('context'))
        refused = re.search(r".* does not load beside the PyTorch module's torch .*", output)
        if refused:
            raise InstallationError(refused[0].strip())
        if "No module named 'torch'" in output:
            options['hint_stmt'] = ALONE
        make(error, **options)

    DiagnosticPipError.__init__ = make_with_hint


def keep_torch(advice, versions):
    """Let pip leave what the module holds as it is, and say so where that is why it fails or takes an older release."""
    from pip._internal.exceptions import InstallationError
    from pip._internal.resolution.resolvelib.candidates import AlreadyInstalledCandidate
    from pip._internal.resolution.resolvelib.factory import Factory
    from pip._internal.resolution.resolvelib.resolver import Resolver

    resolve, get_error = Resolver.resolve, Factory.get_installation_error
    get_dependencies = AlreadyInstalledCandidate.iter_dependencies

    def dependencies(candidate, with_requires):
        """None of what the module holds: it has them, an environment may hide one, such as venv's setuptools."""
        return iter(()) if candidate.project_name in versions else get_dependencies(candidate, with_requires)

    def excluded(requirement):
        """Whether a resolver's requirement is for another version than the module's."""
        version = versions.get(requirement.project_name)
        candidate, wanted = requirement.get_candidate_lookup()
        if version is None or not (candidate or wanted):
            return False
        return str(candidate.version) != version if candidate else not wanted.specifier.contains(version, True)

    def get_error_with_advice(factory, error, constraints):
        explained = get_error(factory, error, constraints)
        names = [cause.requirement.project_name for cause in error.causes if hasattr(cause.requirement, 'project_name')]
        if (any(excluded(cause.requirement) for cause in error.causes)
                or any(name in constraints and not constraints[name].specifier.contains(versions[name], True)
                       for name in names if name in versions)):
            explained.args = ('%s\n%s' % (explained, advice),)
        return explained

    def check_release(resolver, chosen):
        """Report an older release, which fits the module; fail if it only does not name what does not fit."""
        def requirements(candidate):
            return [found for found in candidate.iter_dependencies(True) if found and hasattr(found, 'project_name')]

        for candidate in resolver.factory._link_candidate_cache.values():
            if candidate.project_name != chosen.project_name or candidate.version <= chosen.version:
                continue
            names = [required.project_name for required in requirements(chosen)]
            for required in sorted(requirements(candidate), reverse=True,
                                   key=lambda required: excluded(required) or bool(refusal(required, versions))):
                reason = '%s %s requires %s' % (candidate.project_name, candidate.version, required)
                if required.project_name in versions and required.project_name not in names:
                    remedy = advice if excluded(required) else 'Not installing %s, which does not' % chosen.version
                    raise InstallationError('%s. %s' % (reason, refusal(required, versions) or remedy))
                if excluded(required):
                    getLogger('pip._internal').warning('%s: installing %s. %s', reason, chosen.version, advice)

    def resolve_and_keep(resolver, *arguments, **options):
        found = resolve(resolver, *arguments, **options)
        for name, requirement in list(found.requirements.items()):
            path = requirement.link.file_path if requirement.link and requirement.link.is_file else ''
            is_held = os.path.realpath(os.path.dirname(path)) == os.path.realpath(HELD)
            if is_held and not IS_BUILD:
                if requirement.user_supplied:
                    raise InstallationError('%s %s is not installed again. %s' % (name, versions[name], advice))
                del found.requirements[name]
            elif name in resolver._result.mapping:
                check_release(resolver, resolver._result.mapping[name])
        if 'uv' in found.requirements:
            atexit.register(explain_uv)
        return found

    Resolver.resolve, Factory.get_installation_error = resolve_and_keep, get_error_with_advice
    AlreadyInstalledCandidate.iter_dependencies = dependencies


def refusal(required, versions):
    """Why a package that the module does not have fails, in the words of its source (hold_packages.py); else ''."""
    stem = '%s-%s' % (required.project_name, versions.get(required.project_name))
    if not os.path.exists(os.path.join(HELD, stem + '.tar.gz')):
        return ''
    with tarfile.open(os.path.join(HELD, stem + '.tar.gz')) as source:
        return literal_eval(re.search(r'\((.*)\)', source.extractfile(stem + '/backend.py').read().decode())[1])


def explain_uv():
    """Print what to do if the uv of this environment is found before the module's: it takes another torch."""
    if which('uv') == os.path.join(sys.prefix, 'bin', 'uv'):
        sys.stderr.write("pip: %s/bin/uv does not keep the module's torch. Use `python -m uv`\n" % sys.prefix)


def start(packages):
    """Change this pip; one with other internals gets the options alone."""
    import pip

    sys.pytorch_pip = True  # an image and an environment on top of it may both have the line
    advice, versions = held_versions()
    if 'SINGULARITY_CONTAINER' in os.environ:
        explain_paths(sys.argv)
    add_options(sys.argv, tuple(map(int, re.findall(r'\d+', pip.__version__)[:2])))
    try:
        change_removal(packages, versions)
        keep_torch(advice, versions)
        explain_builds()
    except (ImportError, AttributeError):
        pass


def is_for_another():
    """Whether this pip only starts itself with another Python, which then decides."""
    return '_PIP_RUNNING_IN_SUBPROCESS' not in os.environ and (
        os.environ.get('PIP_PYTHON') or any(word.partition('=')[0] == '--python' for word in sys.argv))


def program():
    """The word where sys.argv begins in the command line: a program's path, or a module, perhaps with its option -m."""
    with open('/proc/self/cmdline', errors='replace') as file:
        return file.read().split('\0')[-len(sys.argv) - 1]


if sys.argv[0] == '-m' and program().endswith('uv'):
    if seen_packages() and PathFinder.find_spec('uv'):
        from uv import find_uv_bin

        if sys.prefix != sys.base_prefix:
            os.environ.setdefault('VIRTUAL_ENV', sys.prefix)
        os.environ['PATH'] = os.path.dirname(find_uv_bin()) + os.pathsep + os.environ.get('PATH', '')
        os.execv(UV, [UV, *sys.argv[1:]])
elif ({'install', 'uninstall', 'download', 'wheel', 'lock'} & set(sys.argv) and not hasattr(sys, 'pytorch_pip')
      and not is_for_another()):
    seen = seen_packages()
    if seen:
        start(seen)
