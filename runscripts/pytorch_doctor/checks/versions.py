# SPDX-License-Identifier: BSD-3-Clause
"""Checks NCCL, its plugin, libfabric and the image for versions with known faults: those of known_faults.json.

An entry of this file matches if all of its conditions are true:

`versions`    component to version; 1.18 is any 1.18.x, "" is any version
`network`     the profile's fast network
`image`       a pattern for the file name of the image, or of the image that it was installed from
`variables`   variable to values

`symptom`, `source` and `remedy` are for the message.
"""

import json
from fnmatch import fnmatch
from pathlib import Path

from pytorch_doctor import not_applicable, ok, warn

KNOWN = Path(__file__).parents[1] / "known_faults.json"


def check(here):
    """Whether this combination of versions has a known fault."""
    if here.module is None or here.gpu is None:
        reason = "the module is for CPUs" if here.module else "no module is loaded"
        return not_applicable("versions", reason)
    facts, _ = here.torch
    found = facts["versions"] if facts else {}
    images = image_names(here)
    faults = [fault for fault in json.loads(KNOWN.read_text()) if matches(fault, found, images, here.env)]
    listed = ", ".join(f"{name} {version}" for name, version in found.items()) or "versions unknown"
    if not faults:
        return ok("versions", listed + ": no known fault")
    symptoms = "; ".join("{symptom} ({source})".format(**fault) for fault in faults)
    return warn("versions", f"{listed}: {symptoms}", "; ".join(fault["remedy"] for fault in faults))


def image_names(here):
    """The file names of the image, and of the image that it was installed from."""
    try:
        source = json.loads((here.module / "provenance" / "image.json").read_text()).get("source")
    except (OSError, ValueError):
        source = None
    return [Path(path).name for path in (here.env.get("SIFPYTORCH"), source) if path]


def matches(fault, found, images, env):
    """Whether all conditions of an entry are true for these versions, names of the image, and variables."""
    return (
        all(_is_version(found.get(name), version) for name, version in fault.get("versions", {}).items())
        and fault.get("network", "").lower() in ("", env.get("PYTORCH_FAST_NETWORK", "").lower())
        and any(fnmatch(image, fault.get("image", "*")) for image in images or [""])
        and all(env.get(name, "") in values for name, values in fault.get("variables", {}).items())
    )


def _is_version(found, expected):
    """Whether a version, None if the component is absent, is the expected one or a release of it."""
    return found is not None and (not expected or (found + ".").startswith(expected + "."))
