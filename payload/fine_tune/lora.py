"""Fine-tunes a language model with LoRA on all ranks, with accelerate and peft (docs/fine-tune.md).

lora.py MODEL TEXT OUTPUT: MODEL is a directory of Hugging Face's layout, TEXT a file. The adapter is in OUTPUT/adapter.
The same command continues after the last epoch that was saved in OUTPUT, on any number of ranks.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

CONTEXT = 128  # tokens of a sequence
BATCH_SIZE = 8  # sequences per rank and step
LEARNING_RATE = 1e-3

parser = argparse.ArgumentParser()
parser.add_argument("model", type=Path)
parser.add_argument("text", type=Path)
parser.add_argument("output", type=Path)
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()

# an epoch is saved to OUTPUT/checkpoints/checkpoint_N; the last two are kept
saved = (options.output / "checkpoints").glob("checkpoint_*")
epochs_done = 1 + max((int(path.name.split("_")[1]) for path in saved), default=-1)
project = ProjectConfiguration(options.output, automatic_checkpoint_naming=True, total_limit=2, iteration=epochs_done)
# the order of an epoch follows from the seed and its number, also after a resume
order = DataLoaderConfiguration(use_seedable_sampler=True)
accelerator = Accelerator(project_config=project, dataloader_config=order, cpu=not torch.cuda.is_available())
set_seed(1)

tokenizer = AutoTokenizer.from_pretrained(options.model)
model = AutoModelForCausalLM.from_pretrained(options.model)
model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=8, target_modules="all-linear"))
tokens = torch.tensor(tokenizer(options.text.read_text())["input_ids"])
loader = DataLoader(tokens.split(CONTEXT)[:-1], BATCH_SIZE, shuffle=True, drop_last=True)
optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
# accelerate divides the batches among the ranks, and wraps the model with DistributedDataParallel
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
if epochs_done:
    accelerator.load_state()

for epoch in range(epochs_done, options.epochs):
    loader.set_epoch(epoch)
    loss_sum = 0
    for batch in loader:
        loss = model(input_ids=batch, labels=batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        loss_sum += loss.detach()
    mean = accelerator.reduce(loss_sum / len(loader), "mean").item()
    if accelerator.is_main_process:
        print(f"epoch {epoch + 1}/{options.epochs}  loss {mean:.4f}", flush=True)
    accelerator.save_state()

if accelerator.is_main_process:
    accelerator.unwrap_model(model).save_pretrained(options.output / "adapter")
accelerator.end_training()
