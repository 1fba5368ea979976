# SPDX-License-Identifier: BSD-3-Clause
"""Intel's GPUs for computing, and which of them the environment leaves visible; imported on nodes that have some.

Level Zero counts devices by ZE_FLAT_DEVICE_HIERARCHY. In FLAT and COMBINED, of which FLAT is the default, each tile of
a GPU is a device, and ZE_AFFINITY_MASK=0,11 names tiles; in COMPOSITE each GPU is one, and ZE_AFFINITY_MASK=0.1,5 names
tile 1 of the first GPU and both of the last. The mask is a set: the order of devices stays. A mask of the other form
leaves no device; an empty one is ignored.

(Intel, "Flattening GPU Tile Hierarchy"; oneAPI GPU Optimization Guide, "Exposing the Device Hierarchy"; ALCF, "Running
Jobs on Aurora", "Binding MPI ranks to GPUs".)
"""

from pytorch_launch import Problem, exists, is_number, names, read

MASK = "ZE_AFFINITY_MASK"
HIERARCHY = "ZE_FLAT_DEVICE_HIERARCHY"
ORDER = "ZE_ENABLE_PCI_ID_DEVICE_ORDER"


def intel_tiles(root, devices, drivers):
    """The address and the number of each tile in PCI order, which Level Zero has with ZE_ENABLE_PCI_ID_DEVICE_ORDER=1.

    It compares the PCI domain first (compute-runtime, execution_environment_drm.cpp, comparePciIdBusNumber). A graphics
    unit of a CPU, which is on bus 0, is left out, as is what is no display controller without VGA (0x0380 in pci.ids),
    which lspci reports for the Data Center GPUs Max and Flex. A container may hide the devices that Level Zero opens.
    """
    if not exists(f"{root}/dev/dri"):
        return []
    return [
        (pci, tile)
        for pci in sorted({name for driver in drivers for name in names(root + driver) if name.count(":") == 2})
        if pci.split(":")[1] != "00" and (read(f"{devices}/{pci}/class") or "").startswith("0x0380")
        for tile in range(_tiles(f"{devices}/{pci}"))
    ]


def _tiles(device):
    """The number of tiles of a GPU, at least 1.

    The driver xe has a directory for each (xe_tile_sysfs.c), i915 one for each below that of the card, named for the
    graphics part of a tile (sysfs-driver-intel-i915, gt<i>).
    """
    card = next((name for name in sorted(names(f"{device}/drm")) if _has_number(name, "card")), None)
    found = [name for name in names(device) if _has_number(name, "tile")]
    return len(found) or max(1, sum(_has_number(name, "gt") for name in names(f"{device}/drm/{card}/gt")))


def _has_number(name, prefix):
    return name.startswith(prefix) and is_number(name[len(prefix) :])


def see_intel(env, tiles):
    """What `visible_gpus` returns for Intel's GPUs, of which `tiles` are all here; a device as its first tile."""
    mask, is_composite = env.get(MASK), env.get(HIERARCHY, "").upper() == "COMPOSITE"
    changes = {} if env.get(ORDER) else {ORDER: "1"}
    is_in_pci_order = changes or env[ORDER] == "1"
    asked = {entry.strip() for entry in mask.split(",")} if mask else None
    present, found, entries, warnings = [], [], [], []
    for first in tiles:
        if is_composite and first.partition:
            continue
        parts = {str(len(present))}  # the names of the device in a mask
        if is_composite:
            parts.update(f"{len(present)}.{tile.partition}" for tile in tiles if tile.pci == first.pci)
        named = {str(len(present))} if asked is None else asked & parts
        present.append(first)
        if named:
            found.append(first if is_in_pci_order else None)
            entries.append(",".join(sorted(named)))
    if not found:
        form = "<GPU> or <GPU>.<tile>" if is_composite else "<tile>"
        fault = f"{MASK}={mask} matches none of the {len(tiles)} tiles here, so no GPU is visible"
        warnings.append(Problem(fault, f"correct or unset it; its entries are {form} ({HIERARCHY})"))
    return present, found, {MASK: entries}, changes, warnings
