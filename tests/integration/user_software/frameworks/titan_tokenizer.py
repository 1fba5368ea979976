"""Writes a tokenizer of bytes to the directory that is its argument, in the files that torchtitan reads."""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

directory = Path(sys.argv[1])
directory.mkdir()
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
tokenizer.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
tokenizer.train_from_iterator([], trainers.BpeTrainer(special_tokens=["<s>", "</s>"], initial_alphabet=alphabet))
tokenizer.save(str(directory / "tokenizer.json"))
(directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
