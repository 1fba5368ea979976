"""Writes small wheels and source distributions, for tests that install packages."""

import hashlib
import io
import tarfile
import zipfile

#: A module `greeting` in C, whose function `text` returns the macro GREETING of its setup.py.
GREETING = """#include <Python.h>
static PyObject *text(PyObject *self, PyObject *none) { return PyUnicode_FromString(GREETING); }
static PyMethodDef methods[] = {{"text", text, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "greeting", "", -1, methods};
PyMODINIT_FUNC PyInit_greeting(void) { return PyModule_Create(&definition); }
"""


def write_wheel(directory, name, version, files=None, *, requirements=(), commands="", tag="py3-none-any"):
    """Write a wheel with files and commands (PEP 427: a zip archive) to a directory; return its path."""
    stem = f"{name.replace('-', '_')}-{version}"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requirements]
    information = {
        "METADATA": "\n".join([*lines, ""]),
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
        "entry_points.txt": f"[console_scripts]\n{commands}\n",
        "RECORD": "",
    }
    path = directory / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in (files or {}).items():
            archive.writestr(file, text)
        for file, text in information.items():
            archive.writestr(f"{stem}.dist-info/{file}", text)
    return path


def write_sdist(directory, name, files, version="1.0"):
    """Write a source distribution to a directory; return its path."""
    path = directory / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in files.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{file}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path


def sha256(path):
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
