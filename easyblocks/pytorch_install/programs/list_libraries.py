# SPDX-License-Identifier: BSD-3-Clause
"""
Prints the shared libraries of an image as JSON: `module load` compares the host's with them before it binds any.
"""
import glob
import json
import os
import re
import subprocess
import sys

# The libraries whose symbol versions are printed, and how the names of these versions begin.
VERSIONED = {'libc.so.6': rb'GLIBC', 'libstdc++.so.6': rb'(?:GLIBCXX|CXXABI)'}

# What the runtime itself binds into the image.
OF_THE_RUNTIME = '/.singularity.d/'


def cached():
    """Name and path of the libraries in the loader's cache, for this Python's architecture."""
    try:
        lines = subprocess.run(['/sbin/ldconfig', '-p'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               check=True, universal_newlines=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):  # without a cache, the loader searches its own directories
        places = ['/lib64', '/usr/lib64', '/lib', '/usr/lib', '/lib/*-linux-gnu', '/usr/lib/*-linux-gnu']
        return [(os.path.basename(path), path) for place in places for path in glob.glob(place + '/*.so*')]
    found = [re.match(r'\s*(\S+) \(([^)]*)\) => (\S+)', line) for line in lines]
    is_wide = sys.maxsize > 2 ** 32
    return [(entry.group(1), entry.group(3)) for entry in found if entry and ('64' in entry.group(2)) == is_wide]


def on_search_path():
    """Name and path of the libraries in the image's own LD_LIBRARY_PATH, which come before those of the cache."""
    places = [place for place in os.environ.get('LD_LIBRARY_PATH', '').split(':') if place]
    return [(os.path.basename(path), path) for place in places for path in sorted(glob.glob(place + '/*.so*'))]


def versions(path, prefix):
    """Names of symbol versions in a library."""
    try:
        with open(path, 'rb') as file:
            names = re.findall(rb'\0(' + prefix + rb'_[A-Z0-9_.]+)(?=\0)', file.read())
    except OSError:
        return []
    return sorted({name.decode() for name in names})


def glibc():
    """Version of the C library, or None if it is another one."""
    try:
        return os.confstr('CS_GNU_LIBC_VERSION').split()[1]
    except (AttributeError, IndexError, OSError, ValueError):
        return None


libraries = {}
for name, path in on_search_path() + cached():
    if not path.startswith(OF_THE_RUNTIME):
        libraries.setdefault(name, path)
names = {name: versions(libraries[name], prefix) for name, prefix in VERSIONED.items() if name in libraries}
json.dump({'glibc': glibc(), 'versions': names, 'libraries': libraries}, sys.stdout)
