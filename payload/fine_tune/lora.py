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
from transformers import AutoModelForCausalLM, AutoTokenizer


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8, help="sequences per rank and step (default: %(default)s)")
    parser.add_argument("--context", type=int, default=128, help="tokens of a sequence (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


def main():
    options = parse_arguments()
    # an epoch is saved to OUTPUT/checkpoints/checkpoint_N; the last two are kept
    project = ProjectConfiguration(str(options.output), automatic_checkpoint_naming=True, total_limit=2)
    # the order of an epoch follows from the seed and its number, also after a resume
    order = DataLoaderConfiguration(use_seedable_sampler=True)
    use_cpu = not torch.cuda.is_available()
    accelerator = Accelerator(project_config=project, dataloader_config=order, cpu=use_cpu)
    set_seed(1)

    def say(line):  # accelerator.print prints on each node
        if accelerator.is_main_process:
            print(line, flush=True)

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=8, target_modules="all-linear"))
    tokens = torch.tensor(tokenizer(options.text.read_text())["input_ids"])
    sequences = tokens[: len(tokens) // options.context * options.context].view(-1, options.context)
    loader = torch.utils.data.DataLoader(sequences, options.batch_size, shuffle=True, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), options.lr)
    # accelerate divides the batches among the ranks, and wraps the model with DistributedDataParallel
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    first_epoch = 0
    saved = list((options.output / "checkpoints").glob("checkpoint_*"))
    if saved:
        accelerator.load_state()
        first_epoch = max(int(path.name.split("_")[1]) for path in saved) + 1
        project.iteration = first_epoch
        say(f"continuing with epoch {first_epoch + 1}")

    for epoch in range(first_epoch, options.epochs):
        loader.set_epoch(epoch)
        losses = []
        for batch in loader:
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        mean = accelerator.reduce(torch.stack(losses).mean(), "mean")
        say(f"epoch {epoch + 1}/{options.epochs}  loss {mean.item():.4f}")
        accelerator.save_state()

    if accelerator.is_main_process:
        accelerator.unwrap_model(model).save_pretrained(options.output / "adapter")
    accelerator.end_training()


if __name__ == "__main__":
    main()
