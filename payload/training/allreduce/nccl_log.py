# SPDX-License-Identifier: BSD-3-Clause
"""Reads from NCCL's log which network it uses."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, MutableMapping
from typing import NamedTuple


class Network(NamedTuple):
    """What NCCL's log of one rank reports: its network, libfabric's provider, the networks of its channels."""

    name: str | None
    provider: str | None
    channels: tuple[str, ...]
    warning: str | None

    def __str__(self) -> str:
        provider = f", provider {self.provider}" if self.provider else ""
        channels = f", channels over {' and '.join(self.channels)}" if self.channels else ""
        return f"{self.name or 'unknown'}{provider}{channels}"


def log_nccl(environment: MutableMapping[str, str]) -> Callable[[], str]:
    """Make NCCL write its log to memory, so that no file remains; return a function that reads it.

    NCCL reads these variables at its first collective; values that the user exported are replaced.
    """
    log = os.memfd_create("nccl.log")
    environment.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=f"/proc/self/fd/{log}")
    return lambda: os.pread(log, os.fstat(log).st_size, 0).decode(errors="replace")


def read_nccl_log(text: str) -> Network:
    """Read the lines that NCCL and RCCL write with NCCL_DEBUG=INFO and the subsystems INIT and NET.

    Sources: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/logging.html, and for libfabric
    https://github.com/aws/aws-ofi-nccl, whose versions differ in a capital letter. The last network is the one in use.
    """
    names = re.findall(r"NCCL INFO Using network (.+?)\s*$", text, re.MULTILINE)
    providers = re.findall(r"NET/OFI Selected provider is ([\w;]+)", text, re.IGNORECASE)
    channels = re.findall(r"Channel .* via NET/([^/\n]+)/", text)
    warnings = re.findall(r"NCCL WARN (.+?)\s*$", text, re.MULTILINE)
    return Network(
        names[-1] if names else None,
        providers[-1] if providers else None,
        tuple(sorted(set(channels))),
        warnings[0] if warnings else None,
    )


def last_warning(log: str) -> str:
    """Return the last warning in NCCL's log as a part of a message, "" if there is none."""
    warnings = re.findall(r"NCCL WARN (.+?)\s*$", log, re.MULTILINE)
    return f" (NCCL warning: {warnings[-1]})" if warnings else ""


def is_fast(network: Network, expected: str) -> bool:
    """Return whether the network or its provider is the expected one, and no connection uses TCP.

    Names of NCCL's plugins for InfiniBand begin with the name of its own: IB, IBext_v8.
    """
    names = [name.lower() for name in (network.name, network.provider) if name]
    sockets = "Socket" in (network.name, *network.channels)  # NCCL may fall back to it after it chose a provider
    return any(name.startswith(expected.lower()) for name in names) and not sockets
