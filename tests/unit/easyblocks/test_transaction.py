"""An installation is complete or as it was before, wherever it ends; so is the cleaning up."""

import os
import shutil
from pathlib import Path

import pytest
from easybuild.tools.build_log import EasyBuildError

from pytorch_install.transaction import Installation

pytestmark = pytest.mark.early


class Killed(BaseException):
    """What a kill looks like from inside: nothing after it happens."""


#: Calls that change what is on disk; between any two of them a kill may come.
CHANGES = [
    (os, "rename"),
    (os, "replace"),
    (os, "remove"),
    (os, "unlink"),
    (os, "mkdir"),
    (os, "rmdir"),
    (shutil, "copy2"),
    (shutil, "rmtree"),
]


class Site:
    """A directory that software and modules are installed to."""

    def __init__(self, root, keeps_replaced=False):
        self.keeps_replaced = keeps_replaced
        self.directory = root / "software" / "PyTorch" / "1.0"
        self.module = root / "modules" / "all" / "PyTorch" / "1.0.lua"
        self.module.parent.mkdir(parents=True)
        self.directory.parent.mkdir(parents=True)

    def installation(self):
        """As the next process sees it."""
        return Installation(str(self.directory), str(self.module), self.keeps_replaced)

    def install(self, content):
        """What an easyblock does with an installation, from its install step to its module step."""
        installation = self.installation()
        installation.begin()
        self.directory.mkdir(exist_ok=True)
        (self.directory / "half").write_text(content)
        (self.directory / "whole").write_text(content)
        part = Path(installation.part)
        part.write_text(content)
        installation.finish()
        os.replace(part, self.module)  # noqa: PTH105 (counted)
        installation.discard()

    def state(self):
        """Contents of module and installation; None if missing or incomplete."""
        module = self.module.read_text() if self.module.exists() else None
        files = [self.directory / name for name in ("half", "whole")]
        complete = all(path.exists() for path in files) and len({path.read_text() for path in files}) == 1
        return module, files[0].read_text() if complete else None

    def leftovers(self):
        """Hidden files of either place, without the installation that is kept on purpose."""
        found = [*self.directory.parent.glob(".*"), *self.module.parent.glob(".*")]
        return [path for path in found if not (self.keeps_replaced and path.name == ".1.0.replaced")]


def survives(monkeypatch, count, function):
    """Call a function and kill it after so many changes of the disk; return whether it came to its end before."""
    left = iter(range(count))

    def counted(change):
        def call(*args, **kwargs):
            if next(left, None) is None:
                if change.__name__ == "copy2":
                    source, target = map(Path, args)
                    (target / source.name if target.is_dir() else target).touch()  # got no further
                raise Killed
            return change(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for module, name in CHANGES:
            patch.setattr(module, name, counted(getattr(module, name)))
        try:
            function()
        except Killed:
            return False
    return True


@pytest.mark.parametrize(("old", "keeps_replaced"), [("old", False), (None, False), ("old", True)])
def test_a_kill_at_any_point_leaves_no_module_of_a_broken_installation_and_is_cleaned_up(
    prefix, tmp_path, monkeypatch, old, keeps_replaced
):
    outcomes = set()
    done = False
    count = 0
    while not done:
        site = Site(tmp_path / f"{old}-{count}", keeps_replaced=keeps_replaced)
        if old:
            site.install("older")
            site.install(old)
        done = survives(monkeypatch, count, lambda site=site: site.install("new"))
        module, installed = site.state()
        assert module in (None, installed), count
        site.installation().recover()
        outcomes.add(site.state())
        assert site.state() in {(old, old), ("new", "new"), (None, "new")}, count
        assert site.leftovers() == [], count
        site.install("next")
        assert site.state() == ("next", "next")
        count += 1
    assert {(old, old), ("new", "new"), (None, "new")} == outcomes


def test_a_kill_while_cleaning_up_is_cleaned_up_too(prefix, tmp_path, monkeypatch):
    done = False
    count = 0
    while not done:
        site = Site(tmp_path / str(count))
        site.install("old")
        installation = site.installation()
        installation.begin()
        site.directory.mkdir()
        (site.directory / "half").write_text("new")
        done = survives(monkeypatch, count, site.installation().recover)
        module, installed = site.state()
        assert module in (None, installed), count
        site.installation().recover()
        assert site.state() == ("old", "old"), count
        assert site.leftovers() == []
        count += 1
    assert count > 5


def test_with_ignore_locks_a_second_installation_ends_and_leaves_the_first_alone(prefix, tmp_path):
    site = Site(tmp_path / "site")
    site.install("old")
    first = site.installation()
    first.begin()
    with pytest.raises(EasyBuildError, match=r"^Another `eb` is installing .* run `eb` without --ignore-locks$"):
        site.installation().begin()
    first.roll_back()
    assert site.state() == ("old", "old")
