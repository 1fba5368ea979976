"""Lightning, accelerate, the Trainer, scripts for torchrun and PyTorch's examples: the lines of docs/frameworks.md."""

import os
import re
import shutil
from pathlib import Path

import pytest
from framework_page import commands

pytestmark = [pytest.mark.testbed, pytest.mark.early]

#: Framework to the program that replaces train.py.
PROGRAMS = {
    "Lightning": "lightning_train.py",
    "accelerate": "accelerate_train.py",
    "Trainer of transformers": "trainer_train.py",
    "Scripts for torchrun": "torchrun_train.py",
}


def ranks(output):
    """Return (rank, size, weights, batches) of each rank, by rank."""
    return sorted(re.findall(r"^rank (\d) of (\d), weights (\S+), (\d+) batches$", output, re.MULTILINE))


def is_one_world(printed, size):
    """Return whether the ranks of one world trained: they share the data and end with the same weights."""
    places = [(rank, of, batches) for rank, of, _, batches in printed]
    expected = [(str(rank), str(size), str(16 // size)) for rank in range(size)]
    return places == expected and len({weights for _, _, weights, _ in printed}) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("framework", PROGRAMS)
def test_a_framework_trains_with_every_line_of_its_section(user, framework):
    if framework != "Scripts for torchrun":
        user.install(framework)
    user.program(PROGRAMS[framework])
    for line in commands(framework, "Launch"):
        assert is_one_world(ranks(user.run(line)), 4), line


@pytest.mark.thorough
def test_lightning_rejects_n_alone_and_trains_with_the_plugin_or_another_job_name(user):
    user.install("Lightning")
    user.program("lightning_train.py")
    (named,) = commands("Lightning", "Without a change of the script, name the job")
    assert is_one_world(ranks(user.run(named)), 4)
    alone = named.replace(" --job-name=interactive", "")
    result = user.run_unchecked(alone)
    assert result.returncode != 0
    assert "You set `--ntasks=4` in your SLURM bash script, but this variable is not supported" in result.stderr
    script = user.directory / "train.py"
    imported, trainer = commands("Lightning", "Lightning read the launcher's variables")
    plugins = f"plugins={trainer.partition('plugins=')[2].removesuffix(')')},"
    script.write_text(f"{imported}\n{script.read_text().replace('max_epochs=1,', f'max_epochs=1, {plugins}')}")
    assert is_one_world(ranks(user.run(alone)), 4)


@pytest.mark.thorough
def test_accelerate_launch_on_cpus_is_a_world_of_one_on_each_machine_unless_it_runs_as_a_rank(user):
    user.install("accelerate")
    user.program("accelerate_train.py")
    launcher = "-m accelerate.commands.launch --cpu"
    machines = "--num_machines=2 --num_processes=2 --main_process_port=12345"
    apart = user.run(
        f"srun -N2 --ntasks-per-node=1 singularity exec $SIF bash -c "
        f"'conda-python-simple {launcher} {machines} --machine_rank=$SLURM_NODEID --main_process_ip=nid001001 train.py'"
    )
    assert [rank[:2] for rank in ranks(apart)] == [("0", "1")] * 2
    (line,) = commands("accelerate", "On CPUs, to use options that only `accelerate launch` has, start it as a rank")
    assert is_one_world(ranks(user.run(line)), 4)


#: The line of docs/troubleshooting.md without which gloo's threads may abort a process that ends (torch 2.13).
END = (r"^( *)(\S*destroy_process_group\(\))$", r"\1\2; import time; time.sleep(0.1)")
#: In each example: text, and what replaces it on CPUs.
ON_CPUS = {
    "ddp-tutorial-series": (
        "multinode.py",
        [
            (r"\.to\(self\.local_rank\)", '.to("cpu")'),
            (r", device_ids=\[self\.local_rank\]", ""),
            (r'backend="nccl"', 'backend="gloo"'),
            (r"^ *torch\.cuda\.set_device\(.*\)$", ""),
            END,
        ],
    ),
    "FSDP2": (
        "example.py",
        [
            (r"if not verify_min_gpu_count\(.*\):", "if False:"),
            (r", device_id=device", ""),
            END,
        ],
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("example", ON_CPUS)
def test_pytorchs_examples_train_with_nothing_replaced_but_the_devices(user, example):
    checkout = Path(os.environ.get("PYTORCH_EXAMPLES", ""))
    name, replacements = ON_CPUS[example]
    if not (checkout / "distributed" / example / name).is_file():
        pytest.skip("PYTORCH_EXAMPLES names no checkout of https://github.com/pytorch/examples")
    lines = [line for line in commands("PyTorch's examples", "Launch") if name in line]
    assert len(lines) == 2
    for number, line in enumerate(lines):
        place = user.directory / str(number)
        shutil.copytree(checkout / "distributed" / example, place)
        text = (place / name).read_text()
        for pattern, replacement in replacements:
            text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
        (place / name).write_text(text)
        output = user.run(f"cd {place}\n{line}")
        if example == "FSDP2":
            assert len(list(place.glob("checkpoints/*/*/model_state_dict.pt"))) == 1
        else:
            assert re.findall(r"\[GPU(\d)\] Epoch 2 \| Batchsize: 32 \| Steps: 16", output)
            assert (place / "snapshot.pt").exists()
