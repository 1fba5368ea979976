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


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--adapter", type=Path, help="an adapter of LoRA, which lora.py wrote")
    parser.add_argument("--new-tokens", type=int, default=32, help="most new tokens (default: %(default)s)")
    return parser.parse_args()


def numbers_done(output):
    """The numbers of the prompts whose lines are complete in the files of all ranks."""
    done = set()
    for path in output.glob("*.jsonl"):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # a rank that was killed may have left a part of a line
                done.add(json.loads(line)["number"])
    return done


def main():
    options = parse_arguments()
    rank = int(os.environ.get("RANK", "0"))
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    device = "cpu"
    if torch.cuda.is_available():
        device = f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model)
    if options.adapter:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, options.adapter)
    model.to(device).eval()

    options.output.mkdir(parents=True, exist_ok=True)
    prompts = options.prompts.read_text().splitlines()
    done = numbers_done(options.output)
    # by number: ranks that start later see other files, but divide the same prompts
    mine = [number for number in range(rank, len(prompts), ranks) if number not in done]
    # a new file: the last line of an earlier one may be incomplete
    with (options.output / f"rank-{rank}-{time.time_ns()}.jsonl").open("x") as file:
        for number in mine:
            inputs = tokenizer(prompts[number], return_tensors="pt").to(device)
            with torch.inference_mode():
                tokens = model.generate(**inputs, max_new_tokens=options.new_tokens, do_sample=False)
            text = tokenizer.decode(tokens[0], skip_special_tokens=True)
            print(json.dumps({"number": number, "text": text}), file=file, flush=True)
    print(f"rank {rank} of {ranks}: {len(mine)} prompts", flush=True)


if __name__ == "__main__":
    main()
