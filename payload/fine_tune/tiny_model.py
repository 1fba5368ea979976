"""Writes a small language model with random weights to a directory, to try lora.py and generate.py without a download.

tiny_model.py DIRECTORY: a model of Hugging Face's layout, whose tokens are bytes. It needs transformers.
"""

import sys

from transformers import ByT5Tokenizer, LlamaConfig, LlamaForCausalLM

tokenizer = ByT5Tokenizer(extra_ids=0)
config = LlamaConfig(
    vocab_size=len(tokenizer),
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=256,
    pad_token_id=tokenizer.pad_token_id,
    eos_token_id=tokenizer.eos_token_id,
)
LlamaForCausalLM(config).save_pretrained(sys.argv[1])
tokenizer.save_pretrained(sys.argv[1])
