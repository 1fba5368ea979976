"""Parts of ReFrame's configuration that all site files share: systems of Slurm, partitions and environments.

ReFrame finds it beside the site file. Keys of the configuration: https://reframe-hpc.readthedocs.io, config_reference.
"""

import os

#: A language model that fills a GPU.
MODEL_ON_GPUS = ["--size 124M", "--bf16", "--context 1024", "--batch-size 256", "--steps 50"]
MODEL_ON_CPUS = ["--size 100K", "--context 64", "--steps 40", "--lr 0.004"]


def describe(name, descr, partition, environments, *, recipes, **system):
    """The configuration of a system with a login node, where the `recipes` install, and one partition.

    `recipes` is a list of environments. `system` has further keys of the system.
    """
    login = {"name": "login", "scheduler": "local", "launcher": "local", "features": ["install"]}
    login["environs"] = [each["name"] for each in recipes]
    partition["environs"] = [each["name"] for each in environments]
    described = {
        "name": name,
        "descr": descr,
        "hostnames": [".*"],  # one system per file
        "modules_system": "lmod" if "LMOD_CMD" in os.environ else "nomod",  # elsewhere, tests can be listed
        "partitions": [login, partition],
        **system,
    }
    return {
        "systems": [described],
        "environments": [*environments, *recipes],
        "storage": [{"enable": True}],  # for --performance-report and --performance-compare
    }


def nodes(name, *, access, gpus=0, arch="", launchers=("srun", "torchrun", "ddp-env"), extras, **partition):
    """A partition of nodes with `gpus` on each; `extras` are those of pytorch_job.py."""
    model = MODEL_ON_GPUS if gpus else MODEL_ON_CPUS
    return {
        "name": name,
        "scheduler": "slurm",
        "launcher": "srun",
        "sched_options": {"use_nodes_option": True},
        "access": access,
        "resources": [{"name": "_rfm_gpu", "options": ["--gpus-per-node={num_gpus_per_node}"]}],
        "devices": [{"type": "gpu", "arch": arch, "num_devices": gpus}] if gpus else [],
        "features": ["nodes", *launchers],
        "max_jobs": 10,
        "extras": {"language_model": model, "references": {}, **extras},
        **partition,
    }


def pytorch(name, module, *, before=(), after=(), extras=None, **environment):
    """The environment of a PyTorch module, with the modules that are loaded before and after it."""
    return {
        "name": name,
        "modules": [*before, module, *after],
        "features": ["pytorch"],
        "extras": {"module": module, **(extras or {})},
        **environment,
    }


def recipe(module, name="recipe", **environment):
    """The environment in which `eb` installs the recipe of a module."""
    extras = {"recipe": f"{module.replace('/', '-', 1)}.eb", "module": module}
    return {"name": name, "features": ["recipe"], "extras": extras, **environment}


#: How a command enters an image of Apptainer, and the variables that its module sets.
IN_IMAGE = {"enter": "singularity exec $SIF ", "variables": ["SIF", "SIFPYTORCH"]}
