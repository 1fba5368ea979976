# SPDX-License-Identifier: BSD-3-Clause
"""Chooses the host's libraries of the fast network that an image lacks and can load; run by cluster profiles.

    /usr/bin/python3 -I -S host-network.py <provenance/libraries.json> <<<"$mode $files"

`mode` is the value of PYTORCH_HOST_NETWORK, `files` that of PYTORCH_HOST_NETWORK_FILES: paths, directories and
patterns. Prints one path for each library to bind. If the image cannot load one of them, prints the reason instead, a
line that does not begin with a slash. It runs on the host, when the module is loaded, with any Python from 3.6.
"""

import json
import re
import struct
import sys
from pathlib import Path

#: What `replace` binds although the image has it: libfabric, the library of its provider, plugins of NCCL and RCCL.
NETWORK = re.compile(r"lib(fabric|cxi|nccl-net|rccl-net)[.-].*")
#: Parts of glibc: they fit only their own loader, so that of the image is used.
GLIBC = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|anl|mvec|nsl|thread_db))\.so\.\d+")
#: Libraries of GPUs, which torch or the container runtime (--nv, --rocm) brings.
OF_THE_GPU = re.compile(r"lib(cuda|nvidia-ml|amd|hsa|hip|roc).*")
LIBRARY = re.compile(r"lib.*\.so(\.\d+)*")
#: The library of the image that has to have a symbol version, by the start of its name.
PROVIDERS = {"GLIBC": "libc.so.6", "GLIBCXX": "libstdc++.so.6", "CXXABI": "libstdc++.so.6"}
CORRECT = "Correct PYTORCH_HOST_NETWORK_FILES"

# ELF: https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html, and for DT_VERNEED the LSB's "Symbol Versioning"
PT_LOAD, PT_DYNAMIC = 1, 2
DT_NEEDED, DT_STRTAB, DT_SONAME, DT_VERNEED = 1, 5, 14, 0x6FFFFFFE


class Refusal(Exception):
    """Why nothing is bound: what is wrong, and what to do."""


class Library:
    """A shared library: its file, its own name (`soname`), the libraries and symbol versions that it needs."""

    def __init__(self, path):
        self.path, self.name = path, path.name
        self._bytes = path.read_bytes()
        if self._bytes[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit ELF file")
        (self.machine,) = self._unpack("<H", 18)
        (start,) = self._unpack("<Q", 32)
        size, count = self._unpack("<HH", 54)
        # type, flags, offset in the file, address, physical address, size in the file
        segments = [self._unpack("<IIQQQQ", start + size * number) for number in range(count)]
        self._loaded = [segment for segment in segments if segment[0] == PT_LOAD]
        entries = [entry for segment in segments if segment[0] == PT_DYNAMIC for entry in self._entries(segment)]
        self._names = self._offset(next(value for tag, value in entries if tag == DT_STRTAB))
        self.soname = next((self._text(value) for tag, value in entries if tag == DT_SONAME), self.name)
        self.needed = [self._text(value) for tag, value in entries if tag == DT_NEEDED]
        self.versions = [name for tag, value in entries if tag == DT_VERNEED for name in self._needed_versions(value)]

    def _unpack(self, form, offset):
        return struct.unpack_from(form, self._bytes, offset)

    def _entries(self, segment):
        """Tag and value of each entry of the dynamic section."""
        for offset in range(segment[2], segment[2] + segment[5], 16):
            tag, value = self._unpack("<QQ", offset)
            if tag == 0:
                return
            yield tag, value

    def _offset(self, address):
        """The place in the file of what is loaded at an address."""
        for _, _, at, first, _, size in self._loaded:
            if 0 <= address - first < size:
                return at + address - first
        raise ValueError("damaged: an address is not in the file")

    def _text(self, index):
        start = self._names + index
        return self._bytes[start : self._bytes.index(b"\0", start)].decode(errors="replace")

    def _needed_versions(self, address):
        """Names of the symbol versions: a list of libraries, each with a list of versions."""
        library, following = self._offset(address), True
        while following:
            _, count, _, first, following = self._unpack("<HHIII", library)
            version = library + first
            for _ in range(count):
                _, _, _, name, step = self._unpack("<IHHII", version)
                yield self._text(name)
                version += step
            library += following


def read(path):
    """The Library of a file."""
    try:
        return Library(path)
    except (OSError, ValueError, StopIteration, struct.error) as error:
        raise Refusal(f"{path}: {error or 'not a shared library'}. {CORRECT}") from None


def numbers(text):
    """A key that sorts 1.22 after 1.9."""
    return [(int(digits or 0), other) for digits, other in re.findall(r"(\d+)|(\D+)", str(text))]


def expand(entry):
    """The libraries of an entry: a path, a directory or a pattern. Of several directories, the newest version."""
    path = Path(entry)
    pattern = path / "lib*.so*" if path.is_dir() else path
    anchor = Path(pattern.anchor or ".")
    found = {file.name: file for file in sorted(anchor.glob(str(pattern.relative_to(anchor))), key=numbers)}
    if not found:
        raise Refusal(f"no such file on this host: {entry}. {CORRECT}")
    libraries = [read(file) for name, file in found.items() if LIBRARY.fullmatch(name)]
    # of libcxi.so, libcxi.so.1 and libcxi.so.1.5.0, the one that programs load
    return [library for library in libraries if library.name == library.soname or library.soname not in found]


def choose(libraries, image, replace=False):
    """The libraries to bind; raise Refusal if the image cannot load one of them.

    `image` is what list_libraries.py prints: the version of glibc, symbol versions, and libraries by name.
    """
    if not image["glibc"]:
        raise Refusal("the image has no glibc, which the host's libraries need. Use an image with glibc")
    chosen, machine = {}, read(Path(sys.executable).resolve()).machine
    for library in libraries:
        is_wanted = library.name not in image["libraries"] or (replace and NETWORK.fullmatch(library.name))
        if not is_wanted or GLIBC.fullmatch(library.name):
            continue
        if library.machine != machine:
            raise Refusal(f"{library.path} is for another architecture. {CORRECT}")
        chosen.setdefault(library.name, library)
    for library in chosen.values():
        check_versions(library, image, chosen)
        absent = [
            name
            for name in library.needed
            if name not in chosen
            and name not in image["libraries"]
            and not GLIBC.fullmatch(name)
            and not OF_THE_GPU.fullmatch(name)
        ]
        if absent:
            names = " and ".join(absent)
            raise Refusal(
                f"{library.path} needs {names}, which the image lacks. Add the host's to PYTORCH_HOST_NETWORK_FILES"
            )
    return list(chosen.values())


def check_versions(library, image, chosen):
    """Raise Refusal if the image's glibc or libstdc++ is too old for a library."""
    for version in sorted(library.versions, key=numbers, reverse=True):
        family = version.partition("_")[0]
        provider = PROVIDERS.get(family)
        has = image["versions"].get(provider, [])
        if provider and provider not in chosen and version not in has:
            numbered = [name for name in has if re.fullmatch(family + r"_[\d.]+", name)]
            newest = f"{max(numbered, key=numbers, default='none')} in {provider}"
            found = "glibc " + image["glibc"] if family == "GLIBC" else newest
            raise Refusal(
                f"{library.path} needs {version}, and the image has {found}. "
                "Use a newer image, or one with a libfabric and a plugin of its own"
            )


def main():
    """Print the paths of the libraries to bind, or why there are none: a job can use what the image has."""
    mode, *files = sys.stdin.read().split()
    try:
        image = json.loads(Path(sys.argv[1]).read_text())
        libraries = [library for entry in files for library in expand(entry)]
        chosen = choose(libraries, image, replace=mode == "replace")
    except (OSError, ValueError) as error:
        reason = f"no record of the image's libraries: {error}. Install the module again: eb --rebuild"
        lines = [f"nothing is bound: {reason}"]
    except Refusal as refusal:
        lines = [f"nothing is bound: {refusal}"]
    else:
        lines = [str(library.path) for library in chosen]
        own = [image["libraries"].get(library.name) for library in libraries if NETWORK.fullmatch(library.name)]
        own = [path for path in own if path]
        if own and mode != "replace":
            lines.append(
                f"the image's own are used: {', '.join(own)}. To bind the host's, export PYTORCH_HOST_NETWORK=replace"
            )
    sys.stdout.write("\n".join(lines))


if __name__ == "__main__":
    main()
