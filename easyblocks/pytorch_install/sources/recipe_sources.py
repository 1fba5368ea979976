# SPDX-License-Identifier: GPL-2.0-only
"""
The sources that a recipe names, as values.
"""
import os
from typing import NamedTuple, Optional

from easybuild.tools.build_log import EasyBuildError


class Source(NamedTuple):
    """A source; its path and SHA-256 are known once EasyBuild has fetched and verified it."""

    name: str
    path: Optional[str] = None
    sha256: Optional[str] = None


def recipe_sources(entries, fetched):
    """
    The sources of a recipe, those of EasyBuild's fetch step if there are any yet.

    :param entries: the easyconfig parameter 'sources'
    :param fetched: EasyBuild's own records of sources (the easyblock's `src`)
    """
    if fetched:
        return tuple(Source(entry['name'], entry.get('path'), entry.get('sha256')) for entry in fetched)
    return tuple(Source(entry['filename'] if isinstance(entry, dict) else entry) for entry in entries)


def source_with_extension(sources, extension, easyconfig):
    """The one source with this file name extension, or None; EasyBuildError if there are several."""
    found = [source for source in sources if source.name.endswith(extension)]
    if len(found) > 1:
        raise EasyBuildError("%s has %d sources that end in %s, at most one is expected: %s",
                             os.path.basename(easyconfig), len(found), extension,
                             ', '.join(source.path or source.name for source in found))
    return found[0] if found else None
