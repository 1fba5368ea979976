"""What a rank of a Slurm step does with a staged file: has it staged, and runs a command where it was unpacked."""

import os

from pytorch_packed import DAMAGED

from pytorch_stage import DamagedError, StageError
from pytorch_stage.front import find, obtain
from pytorch_stage.item import loaded_item

APPEAR_SECONDS = 20


def stage(env, say):
    """The path of the node's copy, staged now by the first rank; None, after a message, if that fails."""
    try:
        item = loaded_item(env)
        if "SLURM_STEP_ID" not in env:
            return None
        if env.get("SLURM_PROCID", "0") != "0":
            return find(item, env, APPEAR_SECONDS) or None
        obtain(item, dict(env), say=say)
        return find(item, env) or None
    except DamagedError as error:
        say(f"staging: {error}")
        return DAMAGED
    except StageError as error:
        say(f"staging: {error}. Using the shared files. To silence this message, set PYTORCH_LAUNCH_STAGE=0")
        return None


def run_unpacked(tree, root, arguments, say):
    """Become a command of the installation `root`, as unpacked to the directory `tree` of the node, if it is one."""
    if not os.path.isdir(tree):
        return
    say(f"packed venv unpacked to {tree}")
    variables = {name: moved(value, root, tree) for name, value in os.environ.items() if name != "PYTORCH_PACKED"}
    variables.update(VIRTUAL_ENV=f"{tree}/venv", WITH_VENV="true")  # the script `activate` has the path of the original
    words = [moved(arguments[0], root, tree), *arguments[1:]]
    python = f"{root}/venv/bin/python"
    with open(words[0], "rb") as file:
        if file.readline().startswith(f"#!{python}".encode()):
            words.insert(0, moved(python, root, tree))
    os.execve(words[0], words, variables)  # noqa: S606


def moved(text, root, tree):
    """A text with the paths of the unpacked copy."""
    return tree if text == root else text.replace(f"{root}/", f"{tree}/")
