"""Write recipes and locks of a PyTorch release from those of the newest one in the tree.

Each recipe with a lock or an image of Docker Hub gets a successor, with the hashes of today's package index. Recipes
whose index or registry does not answer are listed; run the command again to write them. If anything else is wrong,
nothing is written.
"""

import argparse
import os
import re
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])
from releases.checks import check  # noqa: E402
from releases.pages import CHANGELOG, SYSTEMS, with_entry, with_rows  # noqa: E402
from releases.recipes import DIRECTORY, lines_changed  # noqa: E402
from releases.release import make_release  # noqa: E402
from releases.write import write_all  # noqa: E402
from testbed.layout import Layout, TestbedError  # noqa: E402
from testbed.lifecycle import provide_release_tools  # noqa: E402
from testbed.progress import exit_status  # noqa: E402


def main(arguments):
    """Write one release; return the exit status."""
    options = parse(arguments)
    layout = Layout.from_environment(os.environ)
    if sys.version_info < (3, 11):
        raise TestbedError(f"Python 3.11 or newer is needed, and {sys.executable} is older. Put one first on PATH.")
    try:
        provide_release_tools(layout)
        start = time.monotonic()
        release = make_release(layout.repository, options.version, options.machine, layout.release_venv / "bin")
        write(layout, options.version, release)
    except (TestbedError, OSError) as error:
        raise TestbedError(f"nothing was written: {error}") from error
    print(report(layout.repository, release, time.monotonic() - start))
    return 0


def write(layout, version, release):
    """Check a release and write it into the tree, with its lines in the pages."""
    tree = layout.repository
    pages = {
        SYSTEMS: with_rows((tree / SYSTEMS).read_text(), release.successors),
        CHANGELOG: with_entry((tree / CHANGELOG).read_text(), entry(version, release)),
    }
    check(tree, release.files, layout.eb_venv / "bin", layout.temporary)
    write_all(tree, release.files, pages)


def parse(arguments):
    """The options of a command line."""
    description, _, details = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        "new-release", description=description, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version", type=release_number, help="version of torch: 2.15.1")
    parser.add_argument("--machine", action="append", default=[], choices=["x86_64", "aarch64"],
                        help="lock only for this machine; by default for those of the newest lock")  # fmt: skip
    return parser.parse_args(arguments)


def release_number(text):
    """A version of torch, without the label of a build."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a release number such as 2.15.1")
    return text


def entry(version, release):
    """The line of the change log."""
    names = ", ".join(f"`{name.partition('-')[2]}`" for name in release.successors.values())
    return f"Recipes for PyTorch {version}: {names}."


def report(tree, release, seconds):
    """What was written, what was not, and what to do next."""
    lines = [f"Written in {seconds:.0f} s:"]
    for old, new in release.successors.items():
        path = DIRECTORY / f"PyTorch-{new}.eb"
        changed = lines_changed((tree / DIRECTORY / f"PyTorch-{old}.eb").read_text(), release.files[path])
        lines.append(f"  {path} ({changed} lines differ from {old})")
    lines += [f"  {path}" for path in release.files if path.suffix != ".eb"]
    lines.append(f"  a line in {CHANGELOG}, a row for each recipe in {SYSTEMS}")
    olds = "|".join(sorted({old.partition("-")[0] for old in release.successors}))
    lines += ["Not written:", *(f"  after {name}: {why}" for name, why in release.unwritten.items())]
    lines += [
        "Next:",
        "  git diff; ./run-tests             # the tests find the new recipes; those for CPUs become the demo's",
        *(f"  eb PyTorch-{name}.eb" for name in release.successors.values()),
        f"  Edit the rows in {SYSTEMS}: what was installed where.",
        f"  git grep -nE '{olds}' README.md docs payload tests/reframe    # what names the old recipes",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    again = "Nothing was written."
    sys.exit(exit_status(lambda: main(sys.argv[1:]), program="new-release", again=again))
