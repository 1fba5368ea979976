"""Continues prompts with a language model on all ranks, each of which takes every N-th prompt (docs/fine-tune.md).

generate.py MODEL PROMPTS OUTPUT: PROMPTS is a file with a prompt on each line. OUTPUT is a directory; each rank appends
lines of JSON to a file of its own in it. The ranks do not communicate: one that fails does not stop the others. The
same command, on any number of ranks, adds what is missing.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

parser = argparse.ArgumentParser()
parser.add_argument("model", type=Path)
parser.add_argument("prompts", type=Path)
parser.add_argument("output", type=Path)
parser.add_argument("--adapter", help="an adapter of LoRA, which lora.py wrote")
parser.add_argument("--new-tokens", type=int, default=32)
options = parser.parse_args()

rank = int(os.environ.get("RANK", "0"))
ranks = int(os.environ.get("WORLD_SIZE", "1"))
device = "cpu"
if torch.cuda.is_available():
    device = f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
tokenizer = AutoTokenizer.from_pretrained(options.model)
model = AutoModelForCausalLM.from_pretrained(options.model)
if options.adapter:
    model.load_adapter(options.adapter)
model.to(device)

options.output.mkdir(parents=True, exist_ok=True)
done = set()  # numbers of prompts
for path in options.output.glob("*.jsonl"):
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):  # a rank that was killed may have left a part of a line
            done.add(json.loads(line)["number"])
prompts = options.prompts.read_text().splitlines()
# by number: ranks that start later see other files, but divide the same prompts
mine = [number for number in range(rank, len(prompts), ranks) if number not in done]
# a new file: the last line of an earlier one may be incomplete
with (options.output / f"rank-{rank}-{time.time_ns()}.jsonl").open("x") as file:
    for number in mine:
        inputs = tokenizer(prompts[number], return_tensors="pt").to(device)
        tokens = model.generate(**inputs, max_new_tokens=options.new_tokens, do_sample=False)
        text = tokenizer.decode(tokens[0], skip_special_tokens=True)
        print(json.dumps({"number": number, "text": text}), file=file, flush=True)
print(f"rank {rank} of {ranks}: {len(mine)} prompts", flush=True)
