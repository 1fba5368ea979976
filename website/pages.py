"""What MkDocs reads: the pages at their paths in the tree, where their links lead, and the navigation of README.md.

A hook of MkDocs, named in mkdocs.yml: https://www.mkdocs.org/user-guide/configuration/#hooks
"""

import re
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from pymdownx.slugs import slugify

TREE = Path(__file__).resolve().parents[1]
HOME = "README.md"
#: Files of website/ that mkdocs.yml names.
ASSETS = ("assets/site.css", "assets/search.js")
#: Pages outside docs/.
ROOT_PAGES = (HOME, "CONTRIBUTING.md", "CHANGELOG.md")
#: The pages of this directory have a section of their own in the navigation.
SITES = "docs/sites/"
#: How the search ranks pages: what explains the words that users type is above what mentions them.
RANKS = {
    **dict.fromkeys(("docs/launch.md", "docs/module.md"), 2.0),
    **dict.fromkeys(("CHANGELOG.md", "docs/benchmarks.md", "docs/systems.md", "docs/testbed.md"), 0.5),
}
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
#: A link whose text is the path of a page of docs/.
PATH_AS_TEXT = re.compile(r"\[(?:docs/|\.\./)*(?:sites/)?[\w-]+\.md\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
#: A row of the table of pages in README.md that names the readers of the rows below it.
READERS = re.compile(r"\| \*\*(.+?)\*\* \|")


def on_config(config):
    """Set the navigation."""
    config.nav = navigation((TREE / HOME).read_text(encoding="utf-8"))
    return config


def navigation(readme):
    """The table "What next" as a navigation of MkDocs: a section for each kind of reader, its pages in their order."""
    sections, listed = {}, {HOME}
    for line in readme.partition("\n## What next\n")[2].splitlines():
        readers = READERS.match(line)
        if readers:
            sections[readers[1]] = []
        for page in LINK.findall(line):
            if not page.endswith(".md") or page in listed:
                continue
            if not sections:
                raise PluginError(f"README.md: {page} is above the first row of readers. Add a row `| **...** |`.")
            listed.add(page)
            add_page(list(sections.values())[-1], page)
    return [{"Start": HOME}, *({name: pages} for name, pages in sections.items())]


def add_page(section, page):
    """Append a page to a section, pages about systems to a section in it."""
    if page.startswith(SITES):
        if not (section and isinstance(section[-1], dict)):
            section.append({"Systems": []})
        section[-1]["Systems"].append(page)
    else:
        section.append(page)


def on_files(files, config):
    """Give every page its path in the tree, so that links between pages are those of the code host."""
    ours = [file for file in files if file.src_dir == config.docs_dir]
    moved = [at(config, f"docs/{file.src_uri}", dest_uri=file.dest_uri) for file in ours]
    pages = [*moved, *(at(config, name) for name in ROOT_PAGES)]
    linked = [at(config, name, dest_uri=f"{name}.txt") for name in linked_files(pages)]
    website = str(TREE / "website")
    assets = [File(name, website, config.site_dir, config.use_directory_urls) for name in ASSETS]
    return Files([*(file for file in files if file not in ours), *pages, *linked, *assets])


def at(config, name, dest_uri=None):
    """A file of the tree; `dest_uri` is its path in the site."""
    return File(name, str(TREE), config.site_dir, config.use_directory_urls, dest_uri=dest_uri)


def linked_files(pages):
    """The files that pages link and that are no pages, as paths in the tree: the site has them as plain text."""
    names = {file.src_uri for file in pages}
    found = set()
    for page in pages:
        if page.is_documentation_page():
            for target in LINK.findall(Path(page.abs_src_path).read_text(encoding="utf-8")):
                file = (TREE / page.src_uri).parent.joinpath(target).resolve()
                if "://" not in target and file.is_file() and file.is_relative_to(TREE):
                    found.add(file.relative_to(TREE).as_posix())
    return sorted(found - names)


def on_page_markdown(markdown, page, **_):
    """Show titles of pages and headings where the pages for code hosts and terminals have paths; rank the page."""
    page.meta["search"] = {"boost": RANKS.get(page.file.src_uri, 1.0)}
    directory = (TREE / page.file.src_uri).parent

    def with_title(link):
        name, _, anchor = link[1].partition("#")
        file = directory.joinpath(name).resolve()
        if not file.is_file() or not file.is_relative_to(TREE / "docs"):
            return link[0]
        return f"[{title(file.read_text(encoding='utf-8'), anchor)}]({link[1]})"

    return PATH_AS_TEXT.sub(with_title, markdown)


def title(text, anchor):
    """The heading of a page with an anchor, by default the first."""
    headings = HEADING.findall(text)
    anchor_of = slugify(case="lower")
    return next((heading for heading in headings if anchor_of(heading, "-") == anchor), headings[0])


def on_post_build(config):
    """Replace stars in the search index by a sign of the same look: in Lunr's index, `*i` fails queries like "i"."""
    index = Path(config.site_dir, "search", "search_index.json")
    index.write_text(index.read_text(encoding="utf-8").replace("*", "\N{ASTERISK OPERATOR}"), encoding="utf-8")
