# SPDX-License-Identifier: BSD-3-Clause
"""Intel's GPUs for computing, and which of them the environment leaves visible; imported on nodes that have some.

Level Zero counts devices by ZE_FLAT_DEVICE_HIERARCHY. In FLAT and COMBINED, of which FLAT is the default, each tile of
a GPU is a device, and ZE_AFFINITY_MASK=0,11 names tiles; in COMPOSITE each GPU is one, and ZE_AFFINITY_MASK=0.1,5 names
tile 1 of the first GPU and both of the last. The mask is a set: the order of devices stays. A mask of the other form
leaves no device; an empty one is ignored.

(Intel, "Flattening GPU Tile Hierarchy"; oneAPI GPU Optimization Guide, "Exposing the Device Hierarchy"; ALCF, "Running
Jobs on Aurora", "Binding MPI ranks to GPUs".)
"""

import os

from pytorch_launch import Problem, is_number, names, read

MASK = "ZE_AFFINITY_MASK"
HIERARCHY = "ZE_FLAT_DEVICE_HIERARCHY"
ORDER = "ZE_ENABLE_PCI_ID_DEVICE_ORDER"

# The devices that Level Zero opens; a container may hide them.
DEVICES = "/dev/dri"
# PCI's class of a display controller without VGA (pci.ids), which lspci reports for the Data Center GPUs Max and Flex.
DISPLAY_CONTROLLER = "0x0380"


def intel_tiles(root, devices, drivers):
    """The address and the number of each tile in PCI order, which Level Zero has with ZE_ENABLE_PCI_ID_DEVICE_ORDER=1.

    It compares the PCI domain first (compute-runtime, execution_environment_drm.cpp, comparePciIdBusNumber). A graphics
    unit of a CPU, which is on bus 0, is left out.
    """
    if not os.path.exists(root + DEVICES):
        return []
    return [
        (pci, tile)
        for pci in sorted({name for driver in drivers for name in names(root + driver) if name.count(":") == 2})
        if pci.split(":")[1] != "00" and (read(f"{devices}/{pci}/class") or "").startswith(DISPLAY_CONTROLLER)
        for tile in range(_tiles(f"{devices}/{pci}"))
    ]


def _tiles(device):
    """The number of tiles of a GPU, at least 1.

    The driver xe has a directory for each (xe_tile_sysfs.c), i915 one for each below that of the card, named for the
    graphics part of a tile (sysfs-driver-intel-i915, gt<i>).
    """
    tiles = _numbered(names(device), "tile")
    if not tiles:
        card = next(iter(_numbered(names(f"{device}/drm"), "card")), None)
        tiles = _numbered(names(f"{device}/drm/{card}/gt"), "gt")
    return max(1, len(tiles))


def _numbered(found, prefix):
    return sorted(name for name in found if name.startswith(prefix) and is_number(name[len(prefix) :]))


def level_zero_devices(env, tiles):
    """The devices that Level Zero makes of all `tiles`, each as its first tile."""
    return [next(iter(parts.values())) for _, parts in _devices(env, tiles)]


def see_intel(env, tiles):
    """The fields of Visible for Intel's GPUs, of which `tiles` are all of this node."""
    mask = env.get(MASK)
    changes = {} if env.get(ORDER) else {ORDER: "1"}
    in_pci_order = changes or env[ORDER] == "1"
    asked = {entry.strip() for entry in mask.split(",")} if mask else None
    found, entries, warnings = [], [], []
    for name, parts in _devices(env, tiles):
        named = {name} if asked is None else asked & {name, *parts}
        if named:
            found.append(next(iter(parts.values())) if in_pci_order else None)
            entries.append(",".join(sorted(named)))
    if not found:
        form = "<GPU> or <GPU>.<tile>" if _is_composite(env) else "<tile>"
        fault = f"{MASK}={mask} matches none of the {len(tiles)} tiles here, so no GPU is visible"
        warnings.append(Problem(fault, f"correct or unset it; its entries are {form} ({HIERARCHY})"))
    return found, {MASK: entries}, changes, warnings


def _is_composite(env):
    return env.get(HIERARCHY, "").upper() == "COMPOSITE"


def _devices(env, tiles):
    """Each device of `tiles` as its name in a mask and its parts, name in a mask to Gpu."""
    if not _is_composite(env):
        for number, tile in enumerate(tiles):
            yield str(number), {str(number): tile}
        return
    cards = {}
    for tile in tiles:
        cards.setdefault(tile.pci, []).append(tile)
    for number, parts in enumerate(cards.values()):
        yield str(number), {f"{number}.{index}": tile for index, tile in enumerate(parts)}
