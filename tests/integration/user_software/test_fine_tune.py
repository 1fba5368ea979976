"""docs/fine-tune.md with the real packages: LoRA and answers to prompts on two nodes, continued after a stop."""

import json
import re

import pytest

pytestmark = [pytest.mark.testbed, pytest.mark.thorough, pytest.mark.early]

PROGRAMS = "$PAYLOAD/fine_tune"
LAUNCH = "srun -N2 -n2 conda-python-distributed"


@pytest.fixture(scope="module")
def environment(testbed, venv, tmp_path_factory):
    """Shell lines that activate an environment with the packages, and a directory with the tiny model."""
    directory = tmp_path_factory.mktemp("fine-tune")
    # the environment counts here as it does for users: the testbed ignores that of the tests themselves
    load = f"unset PYTORCH_LAUNCH_ACTIVE\nmodule load {venv}\ncd {directory}"
    testbed.run(
        f"""{load}
        python -m venv --system-site-packages env
        source env/bin/activate
        pip install --quiet peft accelerate
        python {PROGRAMS}/tiny_model.py tiny
        for i in $(seq 300); do echo "the square of $i is $((i * i))."; done > text
        head -n 40 text | cut -d' ' -f1-5 > prompts
        """
    )
    return f"{load}\nsource env/bin/activate", directory


def losses(output):
    """The loss after each epoch that a run prints."""
    return dict(re.findall(r"^epoch (\d+)/\d+  loss (\S+)$", output, re.MULTILINE))


def test_lora_continues_where_it_ended_with_the_losses_of_an_uninterrupted_run(testbed, environment):
    lines, directory = environment
    whole = losses(testbed.run(f"{lines}\n{LAUNCH} {PROGRAMS}/lora.py tiny text whole --epochs 3"))
    first = losses(testbed.run(f"{lines}\n{LAUNCH} {PROGRAMS}/lora.py tiny text parts --epochs 1"))
    rest = losses(testbed.run(f"{lines}\n{LAUNCH} {PROGRAMS}/lora.py tiny text parts --epochs 3"))
    assert (list(first), list(rest)) == (["1"], ["2", "3"])
    assert {**first, **rest} == whole
    assert float(whole["3"]) < float(whole["1"])
    assert (directory / "parts" / "adapter" / "adapter_model.safetensors").exists()


def test_each_prompt_is_answered_once_and_a_second_run_adds_what_is_missing(testbed, environment):
    lines, directory = environment
    command = f"{PROGRAMS}/generate.py tiny prompts answers --new-tokens 4"
    testbed.run(f"{lines}\n{LAUNCH} {command}")
    files = sorted((directory / "answers").glob("*.jsonl"))
    kept = files[0].read_text()
    files[0].write_text(kept[: len(kept) // 2])  # a rank was killed while it wrote
    testbed.run(f"{lines}\nconda-python-simple {command}")
    numbers = []
    for path in (directory / "answers").glob("*.jsonl"):
        complete = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        numbers += [json.loads(line)["number"] for line in complete]
    assert sorted(numbers) == list(range(40))
