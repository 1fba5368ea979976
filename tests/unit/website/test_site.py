"""The documentation site: the strict build, its navigation, and that it is served whole from one place."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from repository import TREE

from testbed import layout as testbed_layout
from tools.website.__main__ import PAGES, build

pytestmark = pytest.mark.slow

#: What a browser loads by itself, in contrast to links of the text.
LOADED = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["']?([^"'\s>]+)|url\(["']?([^"')]+)""")


@pytest.fixture
def tree(tmp_path):
    """A copy of what the site is built from."""
    pytest.importorskip("mkdocs")
    copy = tmp_path / "tree"
    for name in [*PAGES, "tools/website"]:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        if (TREE / name).is_dir():
            shutil.copytree(TREE / name, copy / name)
        else:
            shutil.copy(TREE / name, copy / name)
    return copy


def test_the_site_has_every_page_and_three_kinds_of_readers(site):
    pages = {page.relative_to(site).as_posix() for page in site.rglob("*.html")} - {"404.html"}
    in_docs = {page.relative_to(TREE).with_suffix(".html").as_posix() for page in (TREE / "docs").rglob("*.md")}
    assert pages == in_docs | {
        "index.html",
        "CONTRIBUTING.html",
        "CHANGELOG.html",
        ".github/SECURITY.html",
        "runscripts/index.html",
    }
    tabs = re.findall(r'<a href="[^"]*" class="md-tabs__link">\s*(.*?)\s*</a>', (site / "index.html").read_text())
    assert tabs[-3:] == ["Use it", "Install it", "Change it"]


def test_a_browser_loads_nothing_from_elsewhere(site):
    for file in [*site.rglob("*.html"), *site.rglob("*.css"), *site.rglob("*.svg")]:
        targets = ["".join(match) for match in LOADED.findall(file.read_text(encoding="utf-8"))]
        assert [target for target in targets if re.match(r"(https?:)?//", target)] == [], file


def test_lists_and_tables_are_not_shown_as_paragraphs(site):
    """Code hosts are more lenient: a list needs an empty line above it, a table none between its rows."""
    for page in site.rglob("*.html"):
        paragraphs = re.findall(r"<p>(.*?)</p>", page.read_text(encoding="utf-8"), re.DOTALL)
        assert [text for text in paragraphs if re.search(r"^(?:[-*] |\|)", text, re.MULTILINE)] == [], page


def test_broken_links_and_unlisted_pages_end_the_build(tree, capfd):
    (tree / "docs" / "new.md").write_text("# A page that the navigation does not list\n")
    with (tree / "docs" / "launch.md").open("a") as page:
        page.write("\n[no page](gone.md), [no heading](module.md#gone)\n")
    with pytest.raises(testbed_layout.TestbedError, match="the site was not built"):
        build(sys.executable, tree / "site", "", tree=tree)
    errors = capfd.readouterr().err
    assert 'not included in the "nav" configuration:\n  - docs/new.md' in errors
    assert "a link 'gone.md', but the target 'docs/gone.md' is not found" in errors
    assert "'docs/module.md' does not contain an anchor '#gone'" in errors


def test_a_directory_with_other_files_is_kept(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(testbed_layout.TestbedError, match="holds no site of this project"):
        build(sys.executable, tmp_path, "")
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.thorough
def test_one_command_builds_the_site_from_a_fresh_clone(tmp_path):
    subprocess.run(["git", "clone", "-q", TREE, tmp_path / "clone"], check=True)
    environment = {**os.environ, "PYTORCH_TESTBED": str(tmp_path / "testbed")}
    command = [tmp_path / "clone" / "tools" / "website" / "build", "--url", "https://docs.example.org/pytorch/"]
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    page = Path(output.splitlines()[0])
    assert page == tmp_path / "testbed" / "website" / "index.html"
    assert '<link rel="canonical" href="https://docs.example.org/pytorch/' in page.read_text(encoding="utf-8")
    changed = subprocess.run(
        ["git", "status", "--porcelain"], cwd=tmp_path / "clone", stdout=subprocess.PIPE, text=True, check=True
    )
    assert changed.stdout == ""
