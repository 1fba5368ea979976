"""The cluster profiles as texts: data, nothing known to hang, and the table of docs/clusters.md."""

import re
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[3]
CLUSTER = TREE / "modulefiles" / "cluster"
PROFILES = sorted(path.name for path in CLUSTER.iterdir() if not path.name.startswith("."))
PROCEDURES = ".policy.tcl"
#: The line by which a profile sets what every cluster needs, and how each of these settings begins in PROCEDURES.
SHARED = "policies_of_every_cluster"
SHARED_SETTING = "    default_"
POLICY = re.compile(r'policy (?P<name>\w+) (?:"(?P<quoted>[^"$\[]*)"|(?P<plain>[^\s"$\[]+))')
#: The line by which a profile binds directories of the host into images.
BINDS = re.compile(r"bind_directories (?:\{(/\S+ ?)+\}|\[directories_of_machine\])")


def lines(profile):
    return (CLUSTER / profile).read_text().splitlines()


def own_settings(profile):
    """The variables that lines of a profile set, in its order, as (name, value)."""
    return _settings(line for line in lines(profile) if line.startswith("policy "))


def shared_settings():
    """The variables that every profile sets by one call, as (name, value)."""
    return _settings(line.removeprefix(SHARED_SETTING) for line in lines(PROCEDURES) if line.startswith(SHARED_SETTING))


def settings(profile):
    """The variables that a profile sets, as (name, value); a line of its own overrides a shared setting."""
    return [*(shared_settings() if SHARED in lines(profile) else []), *own_settings(profile)]


def _settings(texts):
    found = [POLICY.fullmatch(line) for line in texts]
    return [(match["name"], match["quoted"] or match["plain"]) for match in found if match]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_is_data_apart_from_its_help_and_the_file_it_sources(profile):
    text = (CLUSTER / profile).read_text()
    assert text.startswith("#%Module\n# SPDX-License-Identifier: BSD-3-Clause\n# Cluster profile for ")
    body = re.sub(r"^proc ModulesHelp \{\} \{\n.*?^\}\n", "", text, count=1, flags=re.MULTILINE | re.DOTALL)
    known = ("", "conflict cluster", "source [file join [file dirname $ModulesCurrentModulefile] .policy.tcl]", SHARED)
    for line in body.splitlines():
        is_known = line in known or line.startswith(("#", "module-whatis "))
        assert is_known or POLICY.fullmatch(line) or BINDS.fullmatch(line), (
            f"modulefiles/cluster/{profile}: {line!r} is no line `policy NAME value` (a value with blanks in double "
            "quotes, a comment on a line of its own)"
        )


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_sets_what_every_cluster_needs_before_its_own_lines(profile):
    statements = [line for line in lines(profile) if line and not line.startswith("#")]
    source = next(number for number, line in enumerate(statements) if line.startswith("source "))
    assert statements[source + 1 : source + 2] == [SHARED], (
        f"modulefiles/cluster/{profile}: add the line `{SHARED}` right below the line `source ...`"
    )
    values = dict(settings(profile))
    assert values["SLURM_KILL_BAD_EXIT"] == "1"  # a dead rank ends the step
    assert values["PYTORCH_DISTRIBUTED_RES_OPTIONS"] == "timeout:1 attempts:1"
