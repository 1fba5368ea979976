"""Writes the files of a release into the tree: all of them or none."""

import os


def write_all(tree, new, edited):
    """Create the files `new` and replace the files `edited`: texts by path relative to the tree.

    If a file of `new` exists, or writing fails or is interrupted, the tree is as before.
    """
    before = {path: (tree / path).read_text() for path in edited}
    created, replaced = [], []
    try:
        for path, text in new.items():
            with (tree / path).open("x") as file:
                created.append(path)
                file.write(text)
        for path, text in edited.items():
            replaced.append(path)
            replace(tree / path, text)
    except BaseException:
        for path in created:
            (tree / path).unlink()
        for path in replaced:
            replace(tree / path, before[path])
        raise


def replace(path, text):
    """Replace a file in one step."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text)
        part.chmod(path.stat().st_mode)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
