"""Images on top of an installed one: its packages, its ranks, and its provenance."""

import json

import pytest
from distributions import GREETING, sha256, write_sdist, write_wheel

pytestmark = [pytest.mark.testbed, pytest.mark.early]

#: Packed without compression, in seconds.
LINES = """builddependencies = [('PyTorch', '{version}', '{suffix}')]
sources = ['greeting-1.0.tar.gz', 'lock.txt']
checksums = ['{sdist}', '{lock}']
source_packages = [('greeting', {{'GREETING': 'built in the image'}})]
mksquashfs_args = '-noI -noD -noF -noX'"""

SETUP = """import os
import torch
from setuptools import Extension, setup
macros = [("GREETING", '"%s against torch %s"' % (os.environ["GREETING"], torch.__version__))]
setup(name="greeting", version="1.0", ext_modules=[Extension("greeting", ["greeting.c"], define_macros=macros)])
"""
RANKS = """import greeting, hello, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
dist.destroy_process_group()
time.sleep(0.1)  # docs/troubleshooting.md: with gloo, a process that ends at once may abort
print(f"{hello.WORD} {total.item():g} {greeting.text()} {greeting.__file__}\\n", end="", flush=True)
"""


def lines_on(site, module):
    """The lines of a recipe on top of a module; its sources, and the wheel that its lock names, are made here."""
    wheels = site.sources / "p" / "PyTorch" / "wheels"
    wheels.mkdir(parents=True)
    wheel = write_wheel(wheels, "hello", "1.0", {"hello.py": "WORD = 'hello'\n"})
    lock = site.directory / "lock.txt"
    lock.write_text(f"hello==1.0 --hash=sha256:{sha256(wheel)}\n")
    sdist = write_sdist(site.directory, "greeting", {"setup.py": SETUP, "greeting.c": GREETING})
    version, _, suffix = module.partition("/")[2].partition("-")
    return LINES.format(version=version, suffix=f"-{suffix}", sdist=sha256(sdist), lock=sha256(lock))


@pytest.mark.thorough  # unpacks the CPU image and packs it again: 1.6 GB are written three times
def test_packages_on_top_of_an_installed_image_run_on_four_ranks(site, container, work):
    site.install(lines_on(site, container))
    (work / "ranks.py").write_text(RANKS)
    launch = f"cd {work}; srun -N2 --ntasks-per-node=2 singularity exec $SIF conda-python-distributed ranks.py"
    step = site.shell(f"{launch}; echo $SIF; list-packages | grep greeting")
    assert step.returncode == 0, step.stderr
    *ranks, sif, package = step.stdout.splitlines()
    assert len(ranks) == 4
    version = container.partition("/")[2].partition("-")[0]
    inside = "/usr/local/lib/python3.11/dist-packages/greeting"
    assert all(line.startswith(f"hello 4 built in the image against torch {version}") for line in ranks), ranks
    assert all(f" {inside}" in line for line in ranks), ranks
    assert sif == f"{site.installation}/PyTorch-2.13.0-test.sif"
    assert package.split()[-1] == "image"
    assert "is as it was installed" in site.shell("check-image").stdout

    record = site.record()
    base = site.testbed.run(f"module load {container}; cat $CONTAINERROOT/provenance/image.json")
    assert record["base"] == dict(json.loads(base), module=container)
