# SPDX-License-Identifier: BSD-3-Clause
"""Checks the loaded module, its image, the torch that its Python imports, and versions with known faults.

`known_faults.json` has the faults; one applies if all of its conditions are true:

`versions`    component to version; 1.18 is any 1.18.x, "" is any version
`image`       a pattern for the file name of the image, or of the image that it was installed from
`variables`   variable to values

`symptom`, `source` and `remedy` are for the message.
"""

import json
import os
import re
from fnmatch import fnmatch
from pathlib import Path

from pytorch_launch import LaunchError
from pytorch_launch.active import USER_SOFTWARE, bind_line, choose_python, isolate

from pytorch_doctor import fail, not_applicable, ok, warn
from pytorch_doctor.context import IMAGES, find_obstacle, last_line

#: Variables with directories of the installation, and these directories.
PLACES = {"CONTAINERROOT": "", "RUNSCRIPTS": "runscripts", "PAYLOAD": "payload"}
KNOWN = Path(__file__).parents[1] / "known_faults.json"


def check_module(here):
    """Whether a PyTorch module is loaded, and consistent: its variables, its directories, its Python."""
    if here.module is None:
        return fail("no PyTorch module is loaded", "module load PyTorch/<version>: `module avail PyTorch` lists them")
    if not here.module.is_dir():
        remedy = bind_line(here.env, str(here.module)) if here.in_image else "load the module again"
        return fail(f"no such directory: EBROOTPYTORCH={here.module}", remedy)
    places = {name: here.module / place for name, place in PLACES.items()}
    missing = [f"{name}={here.env.get(name, '')}" for name in places if not Path(here.env.get(name) or "/-").is_dir()]
    if missing:
        return fail("no such directory: " + ", ".join(missing), "unset them, and load the module again")
    others = [f"{name}={here.env[name]}" for name, place in places.items() if not place.samefile(here.env[name])]
    if others:
        return warn("not the module's own: " + ", ".join(others), "unless you mean it, unset them, and load it again")
    python = None if here.in_image else here.which("python")
    try:
        active = choose_python(here.env).prefix
    except LaunchError:  # the check `torch` reports it
        active = python and str(Path(python).parents[1])
    if python and not {str(here.module), active}.intersection(map(str, Path(python).parents)):
        remedy = "load the PyTorch module last, and deactivate other environments"
        return warn(f"`python` is {python}, not the module's", remedy)
    loaded = here.env.get("LOADEDMODULES", "").split(":")
    profile = [name[len("cluster/") :] for name in loaded if name.startswith("cluster/")]
    if loaded != [""] and not profile:
        finding = "no cluster profile is loaded with it: a step continues after one of its ranks has failed"
        return warn(finding, "load the PyTorch module again, or `module load cluster/<name>`")
    name = [name for name in loaded if name.startswith("PyTorch/")] or [here.module]
    where = ", in its image" if here.in_image else f", your environment {active}" if active else ""
    return ok(f"{name[0]} ({here.kind}), profile {(profile or ['unknown'])[0]}{where}")


def check_image(here):
    """Whether the image exists, has the size that it was installed with, and starts."""
    if here.module is None or here.kind == "venv":
        return not_applicable("a module with a virtual environment" if here.module else "no module is loaded")
    if here.in_image:
        return not_applicable("pytorch-doctor runs in it")
    again = f"`eb --rebuild {here.recipe[0] or '<recipe>'}`"
    image = here.env.get(IMAGES[here.kind], "")
    pull = "shifterimg" if here.kind == "shifter" else "podman-hpc"
    remedy = f"install it again with {again}" if image[:1] == "/" else f"`{pull} pull {image}`"
    if here.kind == "container":
        again = f"load the module again, which finds the site's copy if there is one; else install it with {again}"
        remedy = f"if that does not help: {again}"
        if not Path(image).is_file():
            return fail(f"image not found: SIFPYTORCH={image}", again)
        size = Path(image).stat().st_size
        expected = here.record("image.json").get("size", size)
        if size != expected:
            return fail(f"{image} has {size} bytes, expected {expected}", again)
    outcome = here.run([str(here.module / "bin" / "start-shell"), "-c", "true"])
    if outcome.status:
        fault = f"{image} does not start: {last_line(outcome.error)}"
        return fail(fault, find_obstacle(outcome.error) or remedy)
    return ok(f"{image} starts")


def check_torch(here):
    """Whether `python` imports the module's torch, with the environment that the user has."""
    if here.module is None:
        return not_applicable("no module is loaded")
    facts, outcome = here.torch
    option = "--force" if here.kind == "venv" else "--rebuild"  # which keeps the running jobs of a venv
    again = f"install the module again: `eb {option} {here.recipe[0] or '<recipe>'}`"
    origin, others = facts and _origin(here, facts), isolate(here.env)
    # seen from outside: a directory of the host may be missing in the image
    is_outside = here.kind == "container" and not here.in_image and origin not in (None, "another place")
    misled = f"unset {' '.join(sorted(others[0]))}; conda-python-distributed removes these directories by itself"
    misled = "" if is_outside or not others[0] else misled
    said = last_line(outcome.error)
    if facts is None and said.startswith("conda-python-simple: "):  # such as an environment of another system
        fault, _, remedy = said.partition(": ")[2].partition(". ")
        return fail(fault, remedy)
    if facts is None:
        remedy = misled or find_obstacle(outcome.error) or f"see the check `image`; {again}"
        return fail(f"python does not import torch: {said}", remedy)
    version, place = facts["version"], f"torch {facts['version']} from {facts['directory']}"
    remove = misled or f"move it; the search path: {facts['python']} -c 'import sys; print(sys.path)'"
    if origin == "another place":
        return fail(f"python imports {place}, which is not the module's", remove)
    if facts["total"] != 8:
        return fail(f"eight ones add up to {facts['total']}", "exclude this node, and report it to the site")
    constraints = here.module / "constraints.txt"
    recorded = re.search(r"^torch==(.+)$", constraints.read_text() if constraints.is_file() else "", re.MULTILINE)
    expected = recorded.group(1).strip() if recorded else here.recipe[1].get("version")
    if origin != "the module":
        finding = f"{place}: your own, in {origin}, hides the module's {expected or 'torch'}"
        # pip could remove the module's
        remedy = f"rm -r {facts['directory']} {facts['directory']}-*.dist-info"
        remedy = "deactivate it" if origin == facts["prefix"] else remedy
        return warn(finding, f"{remedy}, unless you mean to use it")
    found, wanted = _written_by_pip(version), _written_by_pip(expected or version)
    if not found.startswith(wanted):
        is_release = found.partition("+")[0] == wanted.partition("+")[0]
        return (warn if is_release else fail)(f"{place}, but the module is for {expected}", again)
    if misled:
        faults = "; ".join(problem.fault for problem in others[1])
        return warn(f"the module's, but variables lead to another installation: {faults}", misled)
    return ok(place)


def _written_by_pip(version):
    """A version with `nv25.1` for `nv25.01` (packaging.python.org, "Local version identifiers")."""
    return re.sub(r"(?<=\.)0+(?=[0-9])", "", version).lower()


def _origin(here, facts):
    """The place of torch: "the module", one of the user's own, as the active environment's, or "another place"."""
    directory = facts["directory"] + os.sep
    own = {"user-software": USER_SOFTWARE, "PYTHONUSERBASE": here.env.get("PYTHONUSERBASE") or "/nonexistent"}
    for name, place in own.items():
        if directory.startswith((place + os.sep, os.path.realpath(place) + os.sep)):
            return name
    root = os.path.realpath(str(here.module)) + os.sep
    if directory.startswith(root) if here.kind == "venv" else facts["in_image"]:
        return "the module"
    return facts["prefix"] or "another place"


def check_versions(here):
    """Whether this combination of versions has a known fault."""
    if here.module is None or here.gpu is None:
        return not_applicable("no module for GPUs is loaded")
    facts, _ = here.torch
    found = facts["versions"] if facts else {}
    paths = (here.env.get("SIFPYTORCH"), here.record("image.json").get("source"))
    images = [Path(path).name for path in paths if path]
    faults = [fault for fault in json.loads(KNOWN.read_text()) if _matches(fault, found, images, here.env)]
    listed = ", ".join(f"{name} {version}" for name, version in found.items()) or "versions unknown"
    if not faults:
        return ok(listed + ": no known fault")
    symptoms = "; ".join("{symptom} ({source})".format(**fault) for fault in faults)
    return warn(f"{listed}: {symptoms}", "; ".join(fault["remedy"] for fault in faults))


def _matches(fault, found, images, env):
    versions = fault.get("versions", {}).items()
    return (
        all(name in found and (not wanted or f"{found[name]}.".startswith(wanted + ".")) for name, wanted in versions)
        and any(fnmatch(image, fault.get("image", "*")) for image in images or [""])
        and all(env.get(name, "") in values for name, values in fault.get("variables", {}).items())
    )
