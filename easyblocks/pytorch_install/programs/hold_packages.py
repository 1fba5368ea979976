# SPDX-License-Identifier: BSD-3-Clause
"""
Writes what keeps the runtime's torch when users install packages: arguments are the installation and an index, or ''.

`constraints.txt` has the versions of torch and of packages that belong to its build. No index may have them: `held/`
has a wheel of each for --find-links, without its modules. It precedes one of the same version on an index.
"""
import os
import platform
import re
import sys
import zipfile
from importlib import metadata
from pathlib import Path

# One exact version, not only in an extra: `torch==2.13.0; <marker>`, in older wheels `torch (==2.13.0) ; <marker>`.
EXACT = re.compile(r'\s*([\w.-]+)\s*(\[[^]]*\])?\s*\(?\s*==\s*[^\s,;()*]+\s*\)?\s*(;((?!extra).)*)?')

# A version by PEP 440: pip and uv fail on any other in a constraint.
VERSION = re.compile(r'(?i)(\d+!)?\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+([_.][a-z0-9]+)*)?')

# A release of torch, and the label of builds that have an index of their own (download.pytorch.org/whl/<label>).
RELEASE = re.compile(r'2\.(?P<minor>\d+)\.(?P<patch>\d+)(?P<label>(\+(cpu|xpu|cu\d+|rocm[\d.]+))?)')

# In the directory of torch's packages: each Python that sees this torch runs it at its start.
HOOK = 'zz_users_pip.pth'

# Its line. Of an image, the module's variable names the installation. Only pip goes on: sys.orig_argv (Python 3.10) has
# the program, or the option -m and the module, where sys.argv begins.
LINE = ("import os, sys; hold = os.path.join(%s, 'held', 'users_pip.py'); "
        "words = getattr(sys, 'orig_argv', 0) "
        "or open('/proc/self/cmdline', errors='replace').read().split('\\0')[:-1]; "
        "any(os.path.basename(word).rstrip('-.0123456789').rpartition('m')[2] in ('pip', '__pip-runner__.py') "
        "for word in words[-len(sys.argv):][:1]) and os.path.isfile(hold) "
        "and exec(compile(open(hold).read(), hold, 'exec'), {'__file__': hold})\n")
OF_IMAGE = "os.environ.get('CONTAINERROOT', '')"

# Platforms of a wheel (PEP 425): pip and uv prefer the newest that the system has.
PLATFORMS = 'linux_{0}.manylinux_2_17_{0}.manylinux_2_28_{0}.manylinux_{1}_{0}'.format(
    platform.machine(), platform.libc_ver()[1].replace('.', '_'))

# Files of a wheel. It requires nothing: what it stands for is installed with its requirements. A package that compiles
# against torch finds the module's in its build environment, where Python runs the line of the .pth file.
PTH = 'zz_{name}_of_module.pth'
FILES = {
    PTH: 'import os, sys; sys.path.extend(path for path in [{packages!r}] if path not in sys.path and '
         'os.path.isdir(path))\n',
    '{info}/METADATA': 'Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n'
                       'Summary: a package of a PyTorch module, without its files\n',
    '{info}/WHEEL': 'Wheel-Version: 1.0\nGenerator: pytorch-easybuild\nRoot-Is-Purelib: true\nBuild: 999\nTag: {tag}\n',
    '{info}/RECORD': PTH + ',,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n',
}

# The beginning of constraints.txt.
COMMENT = ("# The PyTorch module keeps its torch %s, and what belongs to it. Take releases that fit it, or use an "
           "environment without the module's packages.\n")


def canonical_name(name):
    """A package's name in its normalized form (PEP 503)."""
    return re.sub(r'[-_.]+', '-', name).lower()


def pinned_versions(installed):
    """
    Versions of torch and of packages that belong to its build, by names: those with a build label, those that require
    exactly this torch, and those that torch requires in one exact version (CUDA's libraries, Triton).

    :param installed: distributions by canonical names
    """
    pinned = {name for name, package in installed.items()
              if '+' in package.version or 'torch' in exactly_required(package)}
    new = ['torch']
    for name in new:
        pinned.add(name)
        new.extend(exactly_required(installed[name]) & installed.keys() - pinned)
    return {name: installed[name].version for name in pinned if VERSION.fullmatch(installed[name].version)}


def exactly_required(package):
    """Names of packages that a distribution always requires in one exact version."""
    return {canonical_name(match[1]) for match in map(EXACT.fullmatch, package.requires or []) if match}


def companion_versions(torch, installed):
    """
    Versions of torchvision and torchaudio for a release of torch, where they are not installed and only one fits.

    Tables: README of pytorch/vision; docs.pytorch.org/audio, "Compatibility Matrix". From torchvision 0.29.2 (wheels
    py3-none, for torch 2.14 and later) and torchaudio 2.11.0 on, they fit any later torch; without a build label they
    do not load with a torch that has one: those of PyPI are built for CUDA.
    """
    release = RELEASE.fullmatch(torch)
    if not release:
        return {}
    minor, patch = map(int, release.group('minor', 'patch'))
    if minor == 0:
        patch += 1  # 2.0.0 has 0.15.1 and 2.0.1
    vision = '0.%d.%d' % (minor + 15, patch)
    audio = '2.%d.%d' % (minor, patch)
    label = release['label']
    if minor >= 14:
        vision = label and '0.29.2'
    if minor >= 11:
        audio = label and '2.11.0'
    return {name: version + label for name, version in {'torchvision': vision, 'torchaudio': audio}.items()
            if version and name not in installed}


def write_wheel(held, name, version, packages):
    """
    Write a package's wheel without modules; where it is installed, Python also searches the directory `packages`.

    pip and uv prefer it to one of an index with the same version: by the platform, else by the build number.
    """
    python = 'cp%d%d' % sys.version_info[:2]
    tag = '-'.join([python, python + sys.abiflags, PLATFORMS])
    stem = '%s-%s' % (name.replace('-', '_'), version)
    values = {'name': name, 'version': version, 'info': stem + '.dist-info', 'tag': tag, 'packages': packages}
    with zipfile.ZipFile('%s/%s-999-%s.whl' % (held, stem, tag), 'w') as wheel:
        for file, text in FILES.items():
            wheel.writestr(file.format(**values), text.format(**values))


def constraints(versions, index):
    """Text of the file of constraints, with comments for its readers."""
    text = COMMENT % versions['torch']
    if index:
        text += '# torchvision and torchaudio for it: pip install --extra-index-url %s torchvision\n' % index
    # NVIDIA's images set a file of their own, which a value of the module replaces
    for path in filter(os.path.isfile, os.environ.get('PIP_CONSTRAINT', '').split()):
        text += Path(path).read_text() + '\n'
    return text + ''.join('%s==%s\n' % entry for entry in sorted(versions.items()))


def main(installation, index):
    """Write the files; nothing if torch has no metadata."""
    try:
        packages = str(metadata.distribution('torch').locate_file(''))
    except metadata.PackageNotFoundError:
        return
    installed = {canonical_name(package.metadata['Name'] or ''): package
                 for package in metadata.distributions(path=[packages])}
    pinned = pinned_versions(installed)
    versions = companion_versions(installed['torch'].version, installed)
    versions.update(pinned)
    Path(installation, 'constraints.txt').write_text(constraints(versions, index))
    held = Path(installation, 'held')
    held.mkdir(exist_ok=True)
    (held / 'packages').write_text(packages)  # for users_pip.py and uv: where this torch is
    for name in pinned:
        write_wheel(held, name, pinned[name], packages)
    hook = Path(packages, HOOK)  # an image that was built here has it
    if Path(installation).resolve() in hook.resolve().parents:
        hook.write_text(LINE % repr(installation))
    if hook.exists():
        (held / 'hooked').touch()  # otherwise, the module sets pip's variables


if __name__ == '__main__':
    main(*sys.argv[1:])
