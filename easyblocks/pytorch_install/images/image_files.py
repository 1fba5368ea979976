# SPDX-License-Identifier: GPL-2.0-only
"""
Image files: their structure and checksums, JSON notes on them, and atomic copies.
"""
import hashlib
import json
import os
import platform
import shutil
import struct

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import build_option
from easybuild.tools.filetools import CHECKSUM_TYPE_SHA256, compute_checksum, remove_file

from pytorch_install.sources.directories import source_directories, writable_directory

CHUNK = 16 * 1024 * 1024

# Machines, as `uname -m` prints them, by their codes in SIF headers: https://github.com/apptainer/sif, pkg/sif/arch.go
MACHINES = {b'02': 'x86_64', b'04': 'aarch64', b'06': 'ppc64le'}


def images_directory(software):
    """Directory for downloaded images and their notes: on the source path, not in the home directory."""
    directories = source_directories(software, 'images')
    return writable_directory(directories) or directories[0]


def read_json(path):
    """Content of a JSON file; None if the file is missing or damaged."""
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def read_note(path, *names):
    """Values of a JSON file by their names; all None if the file is missing, damaged or lacks one of them."""
    note = read_json(path)
    try:
        return [note[name] for name in names]
    except (KeyError, TypeError):
        return [None] * len(names)


def checksum_of(path):
    """SHA-256 of a file, in hexadecimal."""
    return compute_checksum(path, CHECKSUM_TYPE_SHA256)


def require_checksum(path, found, expected):
    """Stop unless a file has its SHA-256, or --ignore-checksums is set."""
    if found != expected and not build_option('ignore_checksums'):
        raise EasyBuildError("%s has SHA-256 %s, expected %s. Download it again, or correct the recipe",
                             path, found, expected)


def copy_verified(source, target, checksum=None):
    """
    Copy a file so that `target` appears only when it is complete, on disk and verified; return its SHA-256.

    :param checksum: expected SHA-256, None if unknown
    """
    part = target + '.part'
    digest = hashlib.sha256()
    try:
        with open(source, 'rb') as original, open(part, 'wb') as copy:
            for chunk in iter(lambda: original.read(CHUNK), b''):
                digest.update(chunk)
                copy.write(chunk)
            copy.flush()
            os.fsync(copy.fileno())
        if checksum:
            require_checksum(source, digest.hexdigest(), checksum)
        shutil.copymode(source, part)
        os.replace(part, target)
    except OSError as error:
        raise EasyBuildError("Copying %s to %s failed: %s", source, target, error.strerror or error) from error
    finally:
        if os.path.exists(part):
            remove_file(part)
    return digest.hexdigest()


def check_structure(path):
    """
    Stop if a file is not a SIF image, or shorter than its header specifies.

    The header: https://github.com/apptainer/sif/blob/main/pkg/sif/sif.go, type header.
    """
    with open(path, 'rb') as file:
        header = file.read(128)
    if header[32:41] != b'SIF_MAGIC' or len(header) < 128:
        raise EasyBuildError("%s is not an image in SIF format. Download it again", path)
    data_offset, data_size = struct.unpack('<qq', header[112:128])
    size = os.path.getsize(path)
    if size < data_offset + data_size:
        raise EasyBuildError("%s is truncated: %d of %d bytes. Download it again",
                             path, size, data_offset + data_size)


def machine_of(path):
    """The machine that a SIF image is for, as `uname -m` prints it; None for an unknown one, or another file."""
    with open(path, 'rb') as file:
        header = file.read(48)
    return MACHINES.get(header[45:47]) if header[32:41] == b'SIF_MAGIC' else None


def require_machine(path, name=None):
    """Stop if a SIF image, `name` in messages, is for another machine: the container runtime cannot start it."""
    found = machine_of(path)
    if found not in (None, platform.machine()):
        raise EasyBuildError("%s is an image for %s, and this host is %s. Get the image for %s, or install it on "
                             "another host", name or path, found, platform.machine(), platform.machine())
