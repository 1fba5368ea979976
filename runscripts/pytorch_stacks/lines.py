# SPDX-License-Identifier: BSD-3-Clause
"""Passes the answer of a node through srun, which mixes the output of tasks in pieces of 1,024 bytes.

Slurm sends whole lines that are shorter (slurm, src/slurmd/slurmstepd/io.c, `_task_build_message`).
"""

import base64
import json
import zlib

MARK = "pytorch-stacks-part"
#: Of a line; with the mark, the node's name and two numbers it stays below 1,024 bytes.
PART_BYTES = 640


def in_lines(answer):
    """The lines for an answer, {"node": name, ...}."""
    text = base64.b64encode(zlib.compress(json.dumps(answer).encode())).decode()
    parts = [text[start : start + PART_BYTES] for start in range(0, len(text), PART_BYTES)]
    return "".join(f"{MARK} {answer['node']} {number} {len(parts)} {part}\n" for number, part in enumerate(parts))


def read_lines(text):
    """The answers in the output of all nodes; one that is not complete is left out."""
    nodes = {}
    for words in (line.split(" ") for line in text.splitlines()):
        if len(words) == 5 and words[0] == MARK:
            _, node, number, count, part = words
            nodes.setdefault((node, count), {})[int(number)] = part
    complete = [parts for (_, count), parts in nodes.items() if len(parts) == int(count)]
    return [json.loads(_unpack("".join(parts[number] for number in sorted(parts)))) for parts in complete]


def _unpack(text):
    return zlib.decompress(base64.b64decode(text)).decode()
