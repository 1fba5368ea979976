##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Prints a constraints file for pip and uv: the versions of torch and of what belongs to this build of it. An argument
is the index that has more of this build.

The runtime's Python reads it from its standard input, called by pytorchmodule.py: Python 3.8, standard library alone.
"""
import os
import re
import sys
from importlib import metadata

# One exact version: `torch==2.13.0; <marker>`, in older wheels `torch (==2.13.0) ; <marker>`.
EXACT = re.compile(r'(?P<name>[\w.-]+)\s*(\[[^]]*\])?\s*\(?\s*==\s*(?P<version>[^\s,;()*]+)\s*\)?\s*(;.*)?')

# A version as PEP 440 has it: pip and uv stop at any other in a constraint.
VERSION = re.compile(r'(\d+!)?\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+([-_.][a-z0-9]+)*)?', re.I)

# A release of torch, and the label of builds that have an index of their own (download.pytorch.org/whl/<label>).
RELEASE = re.compile(r'2\.(?P<minor>\d+)\.(?P<patch>\d+)(?P<label>\+(cpu|xpu|cu\d+|rocm[\d.]+))?')


def canonical(name):
    """The name that all spellings of it share (PEP 503)."""
    return re.sub(r'[-_.]+', '-', name).lower()


def belongs(installed):
    """
    Versions of torch and of what belongs to its build: what has a build label too, what was built for this torch
    alone, and what torch requires in one exact version (CUDA's libraries, Triton).

    :param installed: packages by their canonical names: version, and requirements
    """
    pinned = {name: version for name, (version, requirements) in installed.items()
              if name == 'torch' or '+' in version or 'torch' in exact(requirements)}
    new = ['torch']
    while new:
        for name in exact(installed[new.pop()][1]):
            if name in installed and name not in pinned:
                pinned[name] = installed[name][0]
                new.append(name)
    return pinned


def exact(requirements):
    """Names of the packages that are required in one exact version."""
    found = [EXACT.fullmatch(requirement.strip()) for requirement in requirements]
    return {canonical(match['name']) for match in found if match}


def companions(torch):
    """
    Versions of torchvision and torchaudio for a release of torch, if only one fits.

    Tables: README of pytorch/vision; docs.pytorch.org/audio, "Compatibility Matrix". Torchvision 0.29.2 and torchaudio
    2.11.0 were the first that fit any later torch, but a plain one does not load beside a torch with a label.
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
    """Print the file; nothing if there is no record of torch."""
    try:
        directory = str(metadata.distribution('torch').locate_file(''))
    except metadata.PackageNotFoundError:
        return
    installed = {canonical(package.metadata['Name']): (package.version, package.requires or [])
                 for package in metadata.distributions(path=[directory]) if package.metadata['Name']}
    print('# A conflict with a "(constraint)": the PyTorch module keeps its torch %s, and what belongs to it.'
          % installed['torch'][0])
    if any(sys.argv[1:]):
        print('# Packages that are built for it, such as torchvision: pip install --extra-index-url %s <package>'
              % sys.argv[1])
    # NVIDIA's images name a file of their own, which the module's value hides
    for path in os.environ.get('PIP_CONSTRAINT', '').split():
        if os.path.isfile(path):
            with open(path) as file:
                print(file.read().rstrip())
    versions = {**companions(installed['torch'][0]), **belongs(installed)}
    for name, version in sorted(versions.items()):
        if VERSION.fullmatch(version):
            print('%s==%s' % (name, version))


if __name__ == '__main__':
    main()
