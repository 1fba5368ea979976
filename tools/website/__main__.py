"""Build the documentation site from README.md, CONTRIBUTING.md, CHANGELOG.md and docs/.

A broken link, a heading that a link does not find, or a page that tools/website/mkdocs.yml does not list is an
error. The site needs no server programs and loads nothing from elsewhere: copy its directory to a web server.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from testbed.layout import Layout, TestbedError  # noqa: E402
from testbed.lifecycle import provide_environment  # noqa: E402
from testbed.progress import exit_status  # noqa: E402

#: The pages, and what they link to.
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    ".github/SECURITY.md",
    "runscripts/README.md",
    "CITATION.cff",
    "LICENSES",
    "docs",
    "payload",
    "tests/reframe",
)
#: Files of tools/website/ that only this site has.
ASSETS = ("site.css", "site.js")
TREE = Path(__file__).resolve().parents[2]


def main(arguments):
    """Build the site; return the exit status."""
    layout = Layout.from_environment(os.environ)
    parser = argparse.ArgumentParser("tools/website/build", description=__doc__)
    parser.add_argument(
        "--output", type=Path, metavar="DIR", default=layout.root / "website", help="replace DIR (default: %(default)s)"
    )
    parser.add_argument("--url", default="", help="where the site will be: https://docs.example.org/pytorch/")
    options = parser.parse_args(arguments)
    build(provide_environment(layout, "website") / "bin" / "python", options.output.absolute(), options.url)
    print(f"{options.output}/index.html\nTo look at it: python3 -m http.server -d {options.output}")
    return 0


def build(python, output, url, tree=TREE):
    """Run MkDocs, and print what is wrong. Raises TestbedError if anything is."""
    # MkDocs deletes what is there
    if output.is_dir() and any(output.iterdir()) and not (output / ASSETS[0]).exists():
        raise TestbedError(f"{output} is not empty, and holds no site of this project. Choose another directory.")
    with tempfile.TemporaryDirectory() as pages:
        for name in PAGES:
            Path(pages, name).parent.mkdir(exist_ok=True)
            Path(pages, name).symlink_to(tree / name)
        for name in ASSETS:
            Path(pages, name).symlink_to(tree / "tools" / "website" / name)
        # with --quiet, warnings would not count as errors
        configuration = tree / "tools" / "website" / "mkdocs.yml"
        command = [python, "-m", "mkdocs", "build", "--strict", "-f", configuration, "-d", output]
        # the theme announces its successor at each build
        environment = {**os.environ, "PAGES": pages, "SITE_URL": url, "NO_MKDOCS_2_WARNING": "1"}
        result = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode:
        print("\n".join(line for line in result.stderr.splitlines() if not line.startswith("INFO")), file=sys.stderr)
        raise TestbedError("the site was not built. Correct the errors above.")


if __name__ == "__main__":
    again = "Run the same command again."
    sys.exit(exit_status(lambda: main(sys.argv[1:]), program="tools/website/build", again=again))
