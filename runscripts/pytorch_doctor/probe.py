"""What the module's Python is asked about torch, as code for `python -c`; sent by `surroundings`.

It prints one line of JSON, and ends with the exception where torch cannot be imported. Its environment is another than
the doctor's, with another Python, so it shares nothing with it.
"""

PROBE = r"""
import ctypes, json, os, sys
import torch

directory = os.path.dirname(os.path.realpath(torch.__file__))
facts = {
    "python": sys.executable,
    "version": torch.__version__,
    "directory": directory,
    "cuda": torch.version.cuda,
    "hip": getattr(torch.version, "hip", None),
    "in_image": os.stat(directory).st_dev == os.stat("/").st_dev,
    "total": torch.ones(8).sum().item(),
    "devices": [],
    "fault": None,
    "plugin": None,
}
with open("/proc/self/maps") as maps:
    mapped = {line.split(None, 5)[5].strip() for line in maps if line.count(" ") > 5 and ".so" in line}
facts["foreign"] = sorted(path for path in mapped
                          if os.path.basename(path).startswith(("libtorch", "libc10"))
                          and not os.path.realpath(path).startswith(directory + os.sep))
if facts["cuda"] or facts["hip"]:
    try:
        facts["devices"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        if facts["devices"] or not torch.cuda.is_available():
            # the first use tells of a driver that does not fit
            facts["total"] = torch.ones(8, device="cuda").sum().item()
    except Exception as error:
        facts["fault"] = str(error).strip().splitlines()[0]
    names = ["libnccl-net.so", "librccl-net.so", "libnccl-net-ofi.so", "librccl-net-ofi.so"]
    own = os.environ.get("NCCL_NET_PLUGIN", "")
    for name in ([own, "libnccl-net-%s.so" % own] if own else []) + names:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        facts["plugin"] = name
        break
print()
print(json.dumps(facts))
"""
