# SPDX-License-Identifier: GPL-2.0-only
"""
The host's libraries of the fast network that an image lacks and can load, as a list that the installation writes.

`module load` binds what is on the list, if PYTORCH_HOST_NETWORK is set (modulefiles/cluster/.policy.tcl).
"""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from easybuild.tools.filetools import write_file

# The list, beside provenance/libraries.json. Its first line is the value of PYTORCH_HOST_NETWORK_FILES. Each other line
# has a value of PYTORCH_HOST_NETWORK, and the path of a library or a sentence for the user.
RECORD = 'host-network'

# What `replace` binds although the image has it: libfabric, the library of its provider, plugins of NCCL and RCCL.
NETWORK = re.compile(r'lib(fabric|cxi|nccl-net|rccl-net)[.-].*')
# Parts of glibc: they fit only their own loader, so that of the image is used.
GLIBC = re.compile(r'(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|anl|mvec|nsl|thread_db))\.so\.\d+')
# Libraries of GPUs, which torch or the container runtime (--nv, --rocm) brings.
OF_THE_GPU = re.compile(r'lib(cuda|nvidia-ml|amd|hsa|hip|roc).*')
# The library of the image that has to have a symbol version, by the start of its name.
PROVIDERS = {'GLIBC': 'libc.so.6', 'GLIBCXX': 'libstdc++.so.6', 'CXXABI': 'libstdc++.so.6'}
CORRECT = 'Correct PYTORCH_HOST_NETWORK_FILES'


class Refusal(Exception):
    """Why nothing is bound: what is wrong, and what to do."""


class Library:
    """A shared library: its file, its own name (`soname`), its machine, the libraries and symbol versions it needs."""

    def __init__(self, path):
        self.path, self.name = path, path.name
        result = subprocess.run(['readelf', '-hdVW', str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env={**os.environ, 'LC_ALL': 'C'}, universal_newlines=True, check=False)
        machine = re.search(r'^  Machine: +(.*)', result.stdout, re.MULTILINE)
        if result.returncode or not machine or 'ELF64' not in result.stdout or result.stderr:
            raise Refusal('%s: not a 64-bit shared library. %s' % (path, CORRECT))
        self.machine = machine.group(1)
        self.needed = re.findall(r'\(NEEDED\) +Shared library: \[(.*)\]', result.stdout)
        self.soname = (re.findall(r'\(SONAME\) +Library soname: \[(.*)\]', result.stdout) or [self.name])[0]
        self.versions = re.findall(r'  Name: (\S+)  Flags:', result.stdout)


def numbers(text):
    """A key that sorts 1.22 after 1.9."""
    return [(int(digits or 0), other) for digits, other in re.findall(r'(\d+)|(\D+)', str(text))]


def expand(entry):
    """The libraries of an entry: a path, a directory or a pattern. Of several directories, the newest version."""
    path = Path(entry)
    pattern = path / 'lib*.so*' if path.is_dir() else path
    found = {file.name: file for file in sorted(Path('/').glob(str(pattern).lstrip('/')), key=numbers)}
    if not found:
        raise Refusal('no such file on this host: %s. %s' % (entry, CORRECT))
    libraries = [Library(file) for name, file in found.items() if re.fullmatch(r'lib.*\.so(\.\d+)*', name)]
    # of libcxi.so, libcxi.so.1 and libcxi.so.1.5.0, the one that programs load
    return [library for library in libraries if library.name == library.soname or library.soname not in found]


def choose(libraries, image, replace=False):
    """
    The libraries to bind; raise Refusal if the image cannot load one of them.

    :param image: what list_libraries.py prints: the version of glibc, symbol versions, and libraries by name
    """
    if not image['glibc']:
        raise Refusal("the image has no glibc, which the host's libraries need. Use an image with glibc")
    chosen, machine = {}, Library(Path(sys.executable)).machine
    for library in libraries:
        is_wanted = library.name not in image['libraries'] or (replace and NETWORK.fullmatch(library.name))
        if is_wanted and not GLIBC.fullmatch(library.name):
            if library.machine != machine:
                raise Refusal('%s is for another architecture. %s' % (library.path, CORRECT))
            chosen.setdefault(library.name, library)
    for library in chosen.values():
        check_versions(library, image, chosen)
        absent = [name for name in library.needed if name not in chosen and name not in image['libraries']
                  and not GLIBC.fullmatch(name) and not OF_THE_GPU.fullmatch(name)]
        if absent:
            raise Refusal("%s needs %s, which the image lacks. Add the host's to PYTORCH_HOST_NETWORK_FILES"
                          % (library.path, ' and '.join(absent)))
    return list(chosen.values())


def check_versions(library, image, chosen):
    """Raise Refusal if the image's glibc or libstdc++ is too old for a library."""
    for version in sorted(library.versions, key=numbers, reverse=True):
        provider = PROVIDERS.get(version.partition('_')[0])
        if provider and provider not in chosen and version not in image['versions'].get(provider, []):
            raise Refusal('%s needs %s, which the image lacks (it has glibc %s). Use a newer image, or one with a '
                          'libfabric and a plugin of its own' % (library.path, version, image['glibc']))


def lines_of(mode, files, image):
    """Lines of the list for a value of PYTORCH_HOST_NETWORK, 1 or replace."""
    try:
        libraries = [library for entry in files for library in expand(entry)]
        lines = [str(library.path) for library in choose(libraries, image, replace=mode == 'replace')]
    except OSError:
        return ['nothing is bound: readelf not found during the installation. Install binutils, then the module again']
    except Refusal as refusal:
        return ['nothing is bound: %s' % refusal]
    own = [image['libraries'][library.name] for library in libraries
           if NETWORK.fullmatch(library.name) and library.name in image['libraries']]
    if own and mode != 'replace':
        lines.append("the image's own are used: %s. To bind the host's, export PYTORCH_HOST_NETWORK=replace"
                     % ', '.join(own))
    return lines


def write_host_network(provenance, profile):
    """Write the list beside libraries.json, of files that the installer's environment or the cluster profile names."""
    named = re.search(r'^policy PYTORCH_HOST_NETWORK_FILES "?([^"\n]*)', Path(profile).read_text(), re.MULTILINE)
    files = os.environ.get('PYTORCH_HOST_NETWORK_FILES') or (named.group(1) if named else '')
    image = json.loads(Path(provenance, 'libraries.json').read_text())
    lines = ['%s %s' % (mode, line) for mode in ('1', 'replace') for line in lines_of(mode, files.split(), image)]
    write_file(os.path.join(provenance, RECORD), '\n'.join([' '.join(files.split()), *lines]) + '\n')
