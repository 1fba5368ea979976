# SPDX-License-Identifier: BSD-3-Clause
"""
Writes what keeps the runtime's torch when users install packages: arguments are the installation and an index, or ''.

`constraints.txt` has the versions of torch and of packages that belong to its build. No index may have them, and a
resolver then takes old releases that require no torch. So `held/` has a distribution of each for --find-links: a wheel
of what is installed, without its modules, and for what is not installed a source that only says how to get it.
"""
import os
import re
import sys
import tarfile
import zipfile
from importlib import metadata
from io import BytesIO

# One exact version: `torch==2.13.0; <marker>`, in older wheels `torch (==2.13.0) ; <marker>`.
EXACT = re.compile(r'(?P<name>[\w.-]+)\s*(\[[^]]*\])?\s*\(?\s*==\s*(?P<version>[^\s,;()*]+)\s*\)?\s*(?P<marker>;.*)?')

# A version by PEP 440: pip and uv fail on any other in a constraint.
VERSION = re.compile(r'(\d+!)?\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+([-_.][a-z0-9]+)*)?', re.I)

# A release of torch, and the label of builds that have an index of their own (download.pytorch.org/whl/<label>).
RELEASE = re.compile(r'2\.(?P<minor>\d+)\.(?P<patch>\d+)(?P<label>\+(cpu|xpu|cu\d+|rocm[\d.]+))?')

# In the directory of torch's packages: each Python that sees this torch runs it at its start.
HOOK = 'zz_users_pip.pth'

# Its line. Of an image, the module's variable names the installation. Only pip and `python -m uv` go on: sys.orig_argv
# (Python 3.10) has the program, or the option -m and the module, where sys.argv begins.
LINE = ("import os, sys; hold = os.path.join(%s, 'held', 'users_pip.py'); "
        "words = getattr(sys, 'orig_argv', 0) "
        "or open('/proc/self/cmdline', errors='replace').read().split('\\0')[:-1]; "
        "any(os.path.basename(word).rstrip('-.0123456789').rpartition('m')[2] in ('pip', '__pip-runner__.py', 'uv') "
        "for word in words[-len(sys.argv):][:1]) and os.path.isfile(hold) "
        "and exec(compile(open(hold).read(), hold, 'exec'), {'__file__': hold})\n")
OF_IMAGE = "os.environ.get('CONTAINERROOT', '')"

# What a build environment gets: packages that compile against torch find the module's.
SEES = "import os, sys; sys.path.extend(path for path in [%r] if path not in sys.path and os.path.isdir(path))\n"

# A source whose build (PEP 517) fails with its message.
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def canonical_name(name):
    """A package's name in its normalized form (PEP 503)."""
    return re.sub(r'[-_.]+', '-', name).lower()


def pinned_versions(installed):
    """
    Versions of torch and of packages that belong to its build: those with a build label, those that require exactly
    this torch, and those that torch requires in one exact version (CUDA's libraries, Triton).

    :param installed: version and requirements of packages, by canonical names
    """
    pinned = {name: version for name, (version, requirements) in installed.items()
              if name == 'torch' or '+' in version or 'torch' in exactly_required(requirements)}
    new = ['torch']
    while new:
        for name in exactly_required(installed[new.pop()][1]):
            if name in installed and name not in pinned:
                pinned[name] = installed[name][0]
                new.append(name)
    return {name: version for name, version in pinned.items() if VERSION.fullmatch(version)}


def exactly_required(requirements):
    """Names of packages that `requirements` always require in one exact version, not only in an extra."""
    found = [EXACT.fullmatch(requirement.strip()) for requirement in requirements]
    return {canonical_name(match['name']) for match in found if match and 'extra' not in (match['marker'] or '')}


def companion_versions(torch):
    """
    Versions of torchvision and torchaudio for a release of torch, if only one fits.

    Tables: README of pytorch/vision; docs.pytorch.org/audio, "Compatibility Matrix". From torchvision 0.29.2 (wheels
    py3-none, for torch 2.14 and later) and torchaudio 2.11.0 on, they fit any later torch; without a build label they
    do not load with a torch that has one: those of PyPI are built for CUDA.
    """
    release = RELEASE.fullmatch(torch)
    if not release:
        return {}
    minor, patch, label = int(release['minor']), int(release['patch']), release['label'] or ''
    patch += minor == 0  # 2.0.0 has 0.15.1 and 2.0.1
    found = {}
    if minor < 14 or label:
        found['torchvision'] = ('0.%d.%d' % (minor + 15, patch) if minor < 14 else '0.29.2') + label
    if minor < 11 or label:
        found['torchaudio'] = ('2.%d.%d' % (minor, patch) if minor < 11 else '2.11.0') + label
    return found


def core_metadata(name, version):
    """A distribution's metadata: it requires nothing, as what it stands for is installed with its requirements."""
    return 'Metadata-Version: 2.2\nName: %s\nVersion: %s\nSummary: %s of a PyTorch module, without its files\n' % (
        name, version, name)


def write_wheel(directory, name, version, packages):
    """Write a wheel without modules; where it is installed, Python also searches the directory `packages`."""
    stem = '%s-%s' % (name.replace('-', '_'), version.replace('-', '.'))
    files = {stem + '.dist-info/METADATA': core_metadata(name, version),
             stem + '.dist-info/WHEEL': 'Wheel-Version: 1.0\nGenerator: pytorch-easybuild\nRoot-Is-Purelib: true\n'
                                        'Tag: py3-none-any\n',
             'zz_%s_of_module.pth' % name.replace('-', '_'): SEES % packages}
    record = ''.join('%s,,\n' % file for file in [*files, stem + '.dist-info/RECORD'])
    with zipfile.ZipFile(os.path.join(directory, stem + '-py3-none-any.whl'), 'w') as wheel:
        for file, text in {**files, stem + '.dist-info/RECORD': record}.items():
            wheel.writestr(file, text)


def write_source(directory, name, version, message):
    """Write a source distribution whose build fails with a message."""
    stem = '%s-%s' % (name, version)
    files = {'PKG-INFO': core_metadata(name, version), 'pyproject.toml': PROJECT,
             'backend.py': 'raise SystemExit(%r)\n' % message}
    with tarfile.open(os.path.join(directory, stem + '.tar.gz'), 'w:gz') as archive:
        for file, content in files.items():
            entry = tarfile.TarInfo(stem + '/' + file)
            entry.size = len(content)
            archive.addfile(entry, BytesIO(content.encode()))


def main(installation, index):
    """Write the files; nothing if torch has no metadata."""
    try:
        packages = str(metadata.distribution('torch').locate_file(''))
    except metadata.PackageNotFoundError:
        return
    installed = {canonical_name(package.metadata['Name']): (package.version, package.requires or [])
                 for package in metadata.distributions(path=[packages]) if package.metadata['Name']}
    torch, pinned = installed['torch'][0], pinned_versions(installed)
    absent = {name: version for name, version in companion_versions(torch).items() if name not in installed}
    held = os.path.join(installation, 'held')
    os.makedirs(held, exist_ok=True)
    with open(os.path.join(installation, 'constraints.txt'), 'w') as file:
        file.write("# The PyTorch module keeps its torch %s, and what belongs to it. Take a release that fits it, or "
                   "use an environment without the module's packages.\n" % torch)
        # NVIDIA's images set a file of their own, which a value of the module replaces
        for path in os.environ.get('PIP_CONSTRAINT', '').split():
            if os.path.isfile(path):
                with open(path) as own:
                    file.write(own.read().rstrip() + '\n')
        file.writelines('%s==%s\n' % entry for entry in sorted({**absent, **pinned}.items()))
    for name, version in pinned.items():
        write_wheel(held, name, version, packages)
    for name, version in [entry for entry in absent.items() if '+' in entry[1]]:
        remedy = ("Take %s from PyTorch's index: add --extra-index-url %s" % (version, index) if index else
                  'Build %s %s from source, or use another module' % (name, version))
        message = "%s of this index does not load beside the PyTorch module's torch %s. %s" % (name, torch, remedy)
        write_source(held, name, version, message)
    with open(os.path.join(held, 'packages'), 'w') as file:  # for users_pip.py and uv: where this torch is
        file.write(packages + '\n')
    hook = os.path.join(packages, HOOK)
    if os.path.realpath(packages).startswith(os.path.realpath(installation) + os.sep):
        with open(hook, 'w') as file:
            file.write(LINE % repr(installation))
    if os.path.exists(hook):
        with open(os.path.join(held, 'hooked'), 'w'):  # otherwise, the module sets pip's variables
            pass


if __name__ == '__main__':
    main(*sys.argv[1:])
