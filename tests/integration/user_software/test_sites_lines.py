"""Environments on top of a module, made and packed with the lines that LUMI and CSCS publish."""

import shutil

import pytest

pytestmark = [pytest.mark.testbed, pytest.mark.thorough, pytest.mark.early]

#: LUMI-AI-Guide a7e3387, 02-setting-up-environment (create_venv.sh, run_venv.sh; create_squashfs.sh, run_squashfs.sh).
LUMI = {
    "venv": """export BUILD_DIR=optuna-env
mkdir $BUILD_DIR
singularity exec "$SIF" bash -c '
set -euo pipefail
python -m venv $BUILD_DIR --system-site-packages
source $BUILD_DIR/bin/activate
pip install optuna
'
srun -n1 singularity run $SIF bash -c 'source optuna-env/bin/activate && python test_packages.py'""",
    "squashfs": """export BUILD_DIR=optuna-env-temp
export SQUASHFS_NAME=optuna-env.sqsh
mkdir $BUILD_DIR
singularity exec -B "$BUILD_DIR":/user-software "$SIF" bash -c '
set -euo pipefail
python -m venv /user-software --system-site-packages
/user-software/bin/python -m pip install optuna
'
mksquashfs $BUILD_DIR $SQUASHFS_NAME -processors 1 -no-xattrs
rm -rf $BUILD_DIR
export SINGULARITYENV_PREPEND_PATH=/user-software/bin
srun -n1 singularity run -B optuna-env.sqsh:/user-software:image-src=/ $SIF python test_packages.py""",
}
#: cscs-docs 80abed1: docs/software/ml/pytorch.md; docs/build-install/python.md and docs/guides/storage.md. The module
#: replaces the container or the uenv; optuna replaces the packages, the working directory $SCRATCH and /dev/shm.
CSCS = {
    "venv in the container": """python -m venv --system-site-packages .venv
source .venv/bin/activate
pip install optuna""",
    "venv": """unset PYTHONPATH
export PYTHONUSERBASE="$(dirname "$(dirname "$(which python)")")"
python -m venv --system-site-packages ./.venv
source ./.venv/bin/activate
pip install optuna""",
    "uv": """unset PYTHONPATH
export PYTHONUSERBASE="$(dirname "$(dirname "$(which python)")")"
uv venv --python $(which python) --system-site-packages --seed --relocatable --link-mode=copy .venv
source .venv/bin/activate
uv pip install --link-mode=copy optuna
python -m compileall -q -j 8 -o 0 -o 1 -o 2 .venv/lib/python3.11/site-packages""",
}
PACK = "mksquashfs .venv py_venv.squashfs -no-recovery -noappend -Xcompression-level 3"
SHOW = "import optuna, torch; print('optuna', optuna.__file__, 'torch', torch.__version__)\n"


@pytest.fixture
def lines(testbed, work):
    """A function that runs lines with a module loaded, in a directory with uv and a program that imports both."""
    (work / "test_packages.py").write_text(SHOW)
    (work / "tools").mkdir()
    if shutil.which("uv"):
        shutil.copy(shutil.which("uv"), work / "tools/uv")

    def run(module, script):
        return testbed.run(
            f"""export HOME={work} PIP_DISABLE_PIP_VERSION_CHECK=1 UV_CACHE_DIR={work}/cache
module load {module}; export PATH={work}/tools:$PATH
exec 2>&1; {script}""",
            cwd=work,
            timeout=1800,
        )

    return run


@pytest.mark.parametrize("form", LUMI)
def test_lumis_environment_works_unpacked_and_packed(lines, container, form):
    output = lines(container, LUMI[form])
    assert "/optuna/__init__.py torch 2.13.0+cpu" in output
    assert "Error" not in output


@pytest.mark.parametrize("form", CSCS)
@pytest.mark.parametrize("kind", ["container", "venv"])
def test_cscs_environment_works_unpacked_packed_and_elsewhere(lines, request, work, kind, form):
    if form == "uv" and not shutil.which("uv"):
        pytest.skip("no uv: ./run-tests installs it")
    module = request.getfixturevalue(kind)
    (work / "make.sh").write_text(f"set -e\nexport PATH={work}/tools:$PATH\n{CSCS[form]}\npython test_packages.py\n")
    (work / "use.sh").write_text("source $1/bin/activate && python test_packages.py\n")
    mounts = {
        "container": "srun -n1 singularity exec -B py_venv.squashfs:$PWD/{0}:image-src=/ $SIF bash use.sh {0}",
        "venv": "srun -n1 bash -c 'squashfuse py_venv.squashfs {0}; bash use.sh {0}; umount {0} || fusermount3 -u {0}'",
    }
    mount = mounts[kind]
    enter = "singularity exec $SIF " if kind == "container" else ""
    places = [".venv", "elsewhere"] if form == "uv" else [".venv"]  # only uv's are relocatable
    used = "".join(f"mkdir {place}; {mount.format(place)}\n" for place in places)
    output = lines(module, f"{enter}bash make.sh; {PACK} >packed; mv .venv unpacked\n{used}")
    assert "Error" not in output, output
    for place in [".venv", *places]:
        expected = f"optuna {work}/{place}/lib/python3.11/site-packages/optuna/__init__.py torch 2.13.0+cpu"
        assert expected in output, output
