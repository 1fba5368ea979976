"""The environment of a shell after each of its steps, in files."""

from testbed.module_systems import SNAPSHOT


def recorded(directory, *steps):
    """Return a script of these steps, and the files to which it writes the environment after each of them."""
    files = [directory / f"environment-{number}" for number in range(len(steps))]
    lines = [line for step, file in zip(steps, files) for line in (step, SNAPSHOT.format(file))]
    return ("\n".join(lines), *files)
