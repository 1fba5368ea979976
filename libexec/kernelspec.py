"""Prints the kernel.json of a Jupyter kernel; for install-kernel the kernel's own Python reads it from standard input.

Arguments: the kernel's name for people, then the command that becomes Python. Ends with a sentence without ipykernel.
"""

import json
import sys

name, *command = sys.argv[1:]
try:
    import ipykernel.kernelapp  # noqa: F401 (all that the kernel will need)
except ImportError as error:
    sys.exit(f"{name} cannot import ipykernel ({error}): `pip install --user ipykernel`, then try again")
kernel = {
    "display_name": name,
    "language": "python",
    # by a message: a signal would reach a container's Python twice, from Jupyter and from the runtime
    "interrupt_mode": "message",
    "argv": [*command, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
}
print(json.dumps(kernel, indent=2))
