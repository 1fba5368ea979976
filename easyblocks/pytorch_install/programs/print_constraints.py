# SPDX-License-Identifier: BSD-3-Clause
"""
Prints a constraints file for pip and uv: the versions of torch and of packages that belong to its build. Its argument
is an index with more packages for this build, or empty.
"""
import os
import re
import sys
from importlib import metadata

# One exact version: `torch==2.13.0; <marker>`, in older wheels `torch (==2.13.0) ; <marker>`.
EXACT = re.compile(r'(?P<name>[\w.-]+)\s*(\[[^]]*\])?\s*\(?\s*==\s*(?P<version>[^\s,;()*]+)\s*\)?\s*(;.*)?')

# A version by PEP 440: pip and uv fail on any other in a constraint.
VERSION = re.compile(r'(\d+!)?\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+([-_.][a-z0-9]+)*)?', re.I)

# A release of torch, and the label of builds that have an index of their own (download.pytorch.org/whl/<label>).
RELEASE = re.compile(r'2\.(?P<minor>\d+)\.(?P<patch>\d+)(?P<label>\+(cpu|xpu|cu\d+|rocm[\d.]+))?')


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
              if name == 'torch' or '+' in version or 'torch' in exactly_required(without_extras(requirements))}
    new = ['torch']
    while new:
        for name in exactly_required(installed[new.pop()][1]):
            if name in installed and name not in pinned:
                pinned[name] = installed[name][0]
                new.append(name)
    return pinned


def without_extras(requirements):
    """Those of `requirements` that always apply: torchmetrics requires an exact torch only in an extra."""
    return [requirement for requirement in requirements if not re.search(r';.*\bextra\b', requirement)]


def exactly_required(requirements):
    """Names of packages that `requirements` require in one exact version."""
    found = [EXACT.fullmatch(requirement.strip()) for requirement in requirements]
    return {canonical_name(match['name']) for match in found if match}


def companion_versions(torch):
    """
    Versions of torchvision and torchaudio for a release of torch, if only one fits.

    Tables: README of pytorch/vision; docs.pytorch.org/audio, "Compatibility Matrix". From torchvision 0.29.2 and
    torchaudio 2.11.0 on, they fit any later torch; without a build label they do not load with a torch that has one.
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


def main():
    """Print the file; nothing if torch has no metadata."""
    try:
        directory = str(metadata.distribution('torch').locate_file(''))
    except metadata.PackageNotFoundError:
        return
    installed = {canonical_name(package.metadata['Name']): (package.version, package.requires or [])
                 for package in metadata.distributions(path=[directory]) if package.metadata['Name']}
    print('# A conflict with a "(constraint)": the PyTorch module keeps its torch %s, and what belongs to it.'
          % installed['torch'][0])
    if any(sys.argv[1:]):
        print('# Packages that are built for it, such as torchvision: pip install --extra-index-url %s <package>'
              % sys.argv[1])
    # NVIDIA's images set a file of their own, which the module's value replaces
    for path in os.environ.get('PIP_CONSTRAINT', '').split():
        if os.path.isfile(path):
            with open(path) as file:
                print(file.read().rstrip())
    versions = {**companion_versions(installed['torch'][0]), **pinned_versions(installed)}
    for name, version in sorted(versions.items()):
        if VERSION.fullmatch(version):
            print('%s==%s' % (name, version))


if __name__ == '__main__':
    main()
