# SPDX-License-Identifier: GPL-2.0-only
"""
The host's libraries of the fast network that an image lacks and can load, as a list that the installation writes.

`module load` binds what is on the list, if PYTORCH_HOST_NETWORK is set (modulefiles/cluster/.policy.tcl). The image's
own loader finds out what it lacks and can load.
"""
import os
import re
import subprocess
from pathlib import Path

from easybuild.easyblocks.generic.containerimage import run_command
from easybuild.tools.filetools import write_file

# The list, in provenance/. Its first line is the value of PYTORCH_HOST_NETWORK_FILES. Each other line has a value of
# PYTORCH_HOST_NETWORK, and the path of a library or a sentence for the user.
RECORD = 'host-network'

# What `replace` binds although the image has it: libfabric, the library of its provider, plugins of NCCL and RCCL.
NETWORK = re.compile(r'lib(fabric|cxi|nccl-net|rccl-net)[.-].*')
# Libraries of GPUs, which torch or the container runtime (--nv, --rocm) brings.
OF_THE_GPU = re.compile(r'\s*lib(cuda|nvidia-ml|amd|hsa|hip|roc).* => not found')


def write_host_network(provenance, profile, python):
    """
    Write the list of files that the installer's environment or the cluster profile names.

    :param python: command of the image's Python, a list
    """
    named = re.search(r'^policy PYTORCH_HOST_NETWORK_FILES "?([^"\n]*)', Path(profile).read_text(), re.MULTILINE)
    files = (os.environ.get('PYTORCH_HOST_NETWORK_FILES') or (named[1] if named else '')).split()
    lines = ['%s %s' % (mode, line) for mode in ('1', 'replace') if files for line in lines_of(mode, files, python)]
    write_file(os.path.join(provenance, RECORD), '\n'.join([' '.join(files), *lines]) + '\n')


def lines_of(mode, files, python):
    """Lines of the list for a value of PYTORCH_HOST_NETWORK, 1 or replace."""
    try:
        found = {entry: expand(entry) for entry in files}
    except OSError:
        return ['nothing is bound: readelf not found during the installation. Install binutils, then the module again']
    for entry in files:
        if not found[entry]:
            return ['nothing is bound: no such file on this host: %s. Correct PYTORCH_HOST_NETWORK_FILES' % entry]
    libraries = {}
    for path in [path for paths in found.values() for path in paths]:
        libraries.setdefault(path.name, str(path))
    own, _ = trace(python, libraries)
    bound = {name: path for name, path in libraries.items()
             if name not in own or (mode == 'replace' and NETWORK.fullmatch(name))}
    _, problem = trace(python, bound, bound.values())
    if problem:
        return ["nothing is bound: the image cannot load the host's libraries (%s). Add what is missing to "
                "PYTORCH_HOST_NETWORK_FILES, or use a newer image" % problem]
    kept = [own[name] for name in libraries if name in own and name not in bound and NETWORK.fullmatch(name)]
    return [*bound.values(), *(["the image's own are used: %s. To bind the host's, export PYTORCH_HOST_NETWORK=replace"
                                % ', '.join(kept)] if kept else [])]


def expand(entry):
    """The libraries of an entry: a path, a directory or a pattern. Of several directories, the newest version."""
    path = Path(entry)
    pattern = path / 'lib*.so*' if path.is_dir() else path
    found = {file.name: file for file in sorted(Path('/').glob(str(pattern).lstrip('/')), key=numbers)}
    # of libcxi.so, libcxi.so.1 and libcxi.so.1.5.0, the one that programs load
    return [file for name, file in found.items() if re.fullmatch(r'lib.*\.so(\.\d+)*', name)
            and (soname(file) == name or soname(file) not in found)]


def numbers(path):
    """A key that sorts 1.22 after 1.9."""
    return [(int(digits or 0), other) for digits, other in re.findall(r'(\d+)|(\D+)', str(path))]


def soname(path):
    """The name by which programs load a library."""
    output = subprocess.run(['readelf', '-dW', path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            env={**os.environ, 'LC_ALL': 'C'}, universal_newlines=True, check=False).stdout
    return (re.findall(r'\(SONAME\) +Library soname: \[(.*)\]', output) or [path.name])[0]


def trace(python, names, binds=()):
    """
    Let the image's loader look for libraries (ld.so(8), LD_TRACE_LOADED_OBJECTS).

    :param binds: files of the host that the image gets, as `module load` binds them
    :return: what it finds, path by name, and what it lacks or cannot load, or ''
    """
    lists = dict.fromkeys(['SINGULARITY_CONTAINLIBS', 'APPTAINER_CONTAINLIBS'], ','.join(binds) or None)
    settings = ['env', 'LC_ALL=C', 'LD_TRACE_LOADED_OBJECTS=1', 'LD_PRELOAD=' + ' '.join(names)]
    output = run_command([*python[:-1], *settings, python[-1], '-V'], variables=lists, fail_on_error=False,
                         hidden=True).output
    found = dict(re.findall(r'^\s*(\S+) => (/\S+)', output, re.MULTILINE))
    problems = [line.strip() for line in output.splitlines()
                if re.search('not found|cannot be preloaded', line) and not OF_THE_GPU.match(line)]
    return found, ', '.join(problems) if 'libc.so.6' in found else 'it has no glibc'
