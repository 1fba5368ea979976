"""Jupyter kernels of earlier installations: their kernel.json names bin/start-kernel.bash."""

import subprocess
import sys
from pathlib import Path

from recipes import VENV, command, recipe

#: A module system: a module is a file that is sourced.
INIT = 'module() { [ "$1" != load ] || source "$MODULEPATH/$2"; }'


def test_a_kernel_that_an_earlier_tree_made_starts(easyblock, tmp_path):
    app = easyblock(recipe(VENV))
    app.make_installdir()
    from pytorch_install import tree

    root = Path(app.installdir)
    tree.install_commands(app.ENGINE, app.image_commands, str(root))
    (root / "bin/conda-python-simple").unlink()
    command(root / "bin/conda-python-simple", f'exec {sys.executable} -c "import sys; print(*sys.argv[1:])" "$@"\n')
    (tmp_path / "init").write_text(INIT)
    (tmp_path / "sourced").mkdir()
    (tmp_path / "sourced" / "PyTorch").write_text(f"export EBROOTPYTORCH={root} PATH={root}/bin:$PATH")
    start = f"/bin/bash {root}/bin/start-kernel.bash {tmp_path}/init {tmp_path}/sourced PyTorch"
    line = [*start.split(), "/opt/runtime/bin", "-m", "ipykernel_launcher", "-f", "kernel-1.json"]
    done = subprocess.run(line, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("-m ipykernel_launcher -f kernel-1.json\n", "")
