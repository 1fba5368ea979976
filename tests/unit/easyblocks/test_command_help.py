"""easyblocks/pytorch_install/command_help.py: manual pages and completion from the texts of --help."""

import re
import shutil
import subprocess

import pytest

from pytorch_install import tree
from pytorch_install.command_help import help_texts, manual_page, options

TEXT = r"""Usage: pack [--clean] FILE

Packs user-software into one file: file systems are slow. It's `quick`.
.dots and \n stay.

    pack --clean ~/file

  --clean  delete the directory,
           or the file
  PACK_LIMIT=N  how many
(these come first)
"""


def rendered(page):
    """Return the page as `man` shows it, and fail if man or groff warn."""
    if shutil.which("man") is None:
        pytest.skip("man is not installed")
    command = ["man", "--warnings", "--local-file", "-"]
    result = subprocess.run(command, input=page, capture_output=True, text=True, check=True,
                            env={"MANWIDTH": "100", "LC_ALL": "C", "PATH": "/usr/bin:/bin"})  # fmt: skip
    assert result.stderr == ""
    return result.stdout


def test_a_page_has_the_summary_the_usage_examples_and_options():
    text = rendered(manual_page("pack", TEXT, "PyTorch/1"))
    for part in (
        r"NAME\n +pack - packs user-software into one file\n",
        r"SYNOPSIS\n +pack \[--clean\] FILE\n",
        r" It's `quick`\.\s+\.dots and \\n\s+stay\.\n\n {11}pack --clean ~/file\n",
        r"--clean\n +delete the directory, or the file\n",
        r"PACK_LIMIT=N\n +how many\n",
        r"\n +\(these come first\)\n",
    ):
        assert re.search(part, text), part
    assert text.splitlines()[-1].startswith("PyTorch/1 ")


def test_options_are_those_of_the_usage_and_of_the_descriptions():
    assert options(TEXT) == ["--clean", "--help"]
    assert options("Usage: a [--one=N|--two]\n\nAs --three does.\n\n-f, --four-five N  x\n") == [
        "--one", "--two", "--four-five", "--help"]  # fmt: skip


@pytest.mark.parametrize("commands", [tree.VENV, tree.CONTAINER], ids=["venv", "container"])
def test_every_command_has_a_page_that_names_all_that_its_help_does(commands, capfd):
    texts = help_texts(commands)
    assert capfd.readouterr().err == ""
    own = {name for name in tree.user_commands(commands) if name != "start-shell"}  # which enters the image
    assert texts.keys() == own
    for name, text in texts.items():
        page = " ".join(rendered(manual_page(name, text, "PyTorch/1")).split())
        for word in re.findall(r"--[a-z][a-z-]+|[A-Z]+_[A-Z_]+", text):
            assert word in page, (name, word)
