# SPDX-License-Identifier: BSD-3-Clause
"""Prints the kernel.json of a Jupyter kernel, if this Python, which reads it from standard input, can import ipykernel.

Arguments: the name that Jupyter displays, then the command that starts Python.
"""

import json
import sys

name, *command = sys.argv[1:]
try:
    import ipykernel.kernelapp  # noqa: F401 (the kernel needs nothing else)
except ImportError as error:
    sys.exit(f"{name} cannot import ipykernel ({error}). Run `pip install --user ipykernel`, then try again")
kernel = {
    "display_name": name,
    "language": "python",
    # not "signal": Jupyter and the container runtime would each send it to Python
    "interrupt_mode": "message",
    "argv": [*command, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
}
print(json.dumps(kernel, indent=2))
