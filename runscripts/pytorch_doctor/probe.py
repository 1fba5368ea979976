# SPDX-License-Identifier: BSD-3-Clause
"""Collects facts about torch, as code that the module's Python runs with `python -c`.

It prints one line of JSON, or fails with the exception if torch cannot be imported. Its Python is not the doctor's, so
they share no code.
"""

PROBE = r"""
import ctypes, json, os, re, sys
import torch

directory = os.path.dirname(os.path.realpath(torch.__file__))
# in an image without an overlay "/" is made in memory, and what is below it comes from the image
image = {os.stat(place).st_dev for place in ("/", "/usr", sys.base_prefix)}
home = os.path.realpath(sys.prefix) + os.sep
marks = [os.path.join(sys.prefix, mark) for mark in ("pyvenv.cfg", "conda-meta")]
facts = {
    "python": sys.executable,
    "version": torch.__version__,
    "directory": directory,
    "cuda": torch.version.cuda,
    "hip": getattr(torch.version, "hip", None),
    "in_image": os.stat(directory).st_dev in image,
    "prefix": sys.prefix if any(map(os.path.exists, marks)) and directory.startswith(home) else None,
    "total": torch.ones(8).sum().item(),
    "devices": [],
    "fault": None,
    "plugin": None,
    "versions": {},
}
if facts["cuda"] or facts["hip"]:
    try:
        facts["devices"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        # without any, the first use raises the error of an unsuitable driver
        for device in ["cuda:%d" % index for index in range(len(facts["devices"]))] or ["cuda"]:
            total = torch.ones(8, device=device).sum().item()
            if total != 8:
                raise ValueError("eight ones add up to %s" % total)
    except Exception as error:
        sentence = (str(error).strip() or type(error).__name__).splitlines()[0]
        facts["fault"] = "%s: %s" % (device, sentence) if facts["devices"] else sentence
    kinds = ["rccl", "nccl"] if facts["hip"] else ["nccl"]
    named = [part for part in os.environ.get("NCCL_NET_PLUGIN", "").split(",") if part]
    names = [name for part in named for name in [part] + ["lib%s-net-%s.so" % (kind, part) for kind in kinds]]
    for name in names or ["lib%s-net.so" % kind for kind in kinds]:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        facts["plugin"] = name
        break
    try:
        facts["versions"][kinds[0].upper()] = ".".join(map(str, torch.cuda.nccl.version()))
    except Exception:
        pass
    # its code logs "Initializing " and its name and version (aws-ofi-nccl, src/nccl_ofi_net.c)
    with open("/proc/self/maps") as maps:
        loaded = {line.split(None, 5)[5].strip() for line in maps if "ccl-net" in line}
    for path in loaded:
        with open(path, "rb") as library:
            found = re.search(rb"(aws-ofi-[nr]ccl) v?([0-9]+\.[0-9]+\.[0-9]+)", library.read())
        if found:
            facts["versions"][found.group(1).decode()] = found.group(2).decode()
    try:
        number = ctypes.CDLL("libfabric.so.1").fi_version()  # fi_version(3)
        facts["versions"]["libfabric"] = "%d.%d" % (number >> 16 & 0xffff, number & 0xffff)
    except (AttributeError, OSError):
        pass
print()
print(json.dumps(facts))
"""
