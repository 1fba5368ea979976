"""Wheels as files, without a build."""

import hashlib
import zipfile


def write_wheel(path, *requirements, content="def main():\n    print('here')\n"):
    """Write a package with a command to a path, which has its name and version (PEP 427); return its SHA-256."""
    name, version = path.name.split("-")[:2]
    info, tag = f"{name}-{version}.dist-info", "-".join(path.stem.split("-")[2:])
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requirements]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", content)
        archive.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{name}-command = {name}:main\n")
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()
