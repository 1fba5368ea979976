"""Locks of a release: which are followed, the wheels of each machine, pip's indexes, and versions in other texts."""

import re

import pytest

from releases import __main__ as releases
from testbed.layout import TestbedError as Error  # pytest would take it for a class of tests

CUDA = releases.replacer("2.15.0", "2.16.1", "13.2", "14.0")
OLD = "# torch 2.15.0 for CUDA 13.2\n# requirements: torch cmake<4\ntorch==2.15.0\nsix==1.0\nnumpy==1.0\n"


def renew(monkeypatch, found):
    """The pins of OLD for torch 2.16.0 with the packages of each machine, and the questions to uv."""
    asked = []

    def resolve(requirements, constraints, machine, *_):
        asked.append((requirements, list(constraints)))
        return found[machine]

    monkeypatch.setattr(releases, "resolve", resolve)
    return releases.renew(OLD, "", "2.16.0", list(found), None), asked


def test_each_machine_gets_the_same_versions_and_the_lock_all_hashes(monkeypatch):
    found = {machine: {"torch==2.16.0": [f"{machine}-torch"], "numpy==2.0": ["pure"]} for machine in ("a", "b")}
    pins, asked = renew(monkeypatch, found)
    requirements = ["torch===2.16.0", "cmake<4"]
    assert asked == [(requirements, []), (requirements, ["torch==2.16.0", "numpy==2.0"])]
    torch = "torch==2.16.0 --hash=sha256:a-torch --hash=sha256:b-torch"
    assert pins.splitlines() == [torch, "numpy==2.0 --hash=sha256:pure"]


def test_a_package_that_one_machine_does_not_need_is_an_error(monkeypatch):
    found = {"a": {"torch==2.16.0": ["1"], "triton==3.0": ["2"]}, "b": {"torch==2.16.0": ["3"]}}
    with pytest.raises(releases.NoWheelError, match=r"triton==3\.0: needed on one of a, b only.*--machine"):
        renew(monkeypatch, found)


def test_of_each_kind_the_newest_lock_is_followed(tmp_path):
    torch = ("2.9.1-cpu", "2.13.0-cpu", "2.15.0-cuda-13.2", "2.14.0-cuda-13.0", "2.13.0-cpu-horovod-0.28.1")
    for name in torch:
        (tmp_path / f"PyTorch-{name}.txt").write_text("# CPUs\n# requirements: torch six\n# machines: x86_64\n")
    (tmp_path / "PyTorch-2.10.0-rocm-7.1.txt").write_text("# the site's ROCm decides\ntorch==2.10.0\n")
    (tmp_path / "PyTorch-2.13.0-cpu-lightning-2.6.6.txt").write_text("# on an image\nlightning==2.6.6\n")

    def followed(version):
        return sorted(path.stem.partition("-")[2] for path in releases.newest_locks(tmp_path, version))

    assert followed("2.16.0") == ["2.13.0-cpu", "2.13.0-cpu-horovod-0.28.1", "2.15.0-cuda-13.2"]
    assert followed("2.15.0") == ["2.13.0-cpu", "2.13.0-cpu-horovod-0.28.1"]


OTHER_NUMBERS = ("12.15.0", "2.15.01", "2.15.0.1", "CUDA 13.25", "horovod-0.28.1", "python-3.11")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("version = '2.15.0'", "version = '2.16.1'"),
        ("PyTorch-2.15.0-cuda-13.2.txt", "PyTorch-2.16.1-cuda-14.0.txt"),
        ("torch:2.15.0-cuda13.2-cudnn9-runtime", "torch:2.16.1-cuda14.0-cudnn9-runtime"),
        ("# torch 2.15.0 for CUDA 13.2, and more", "# torch 2.16.1 for CUDA 14.0, and more"),
        ("needs a driver for CUDA 13.\n", "needs a driver for CUDA 14.\n"),
        ("torch 2.15.0.", "torch 2.16.1."),
        *((text, text) for text in OTHER_NUMBERS),
    ],
)
def test_versions_are_replaced_and_other_numbers_stay(old, new):
    assert CUDA(old) == new


def test_uv_gets_the_indexes_of_pips_configuration(tmp_path):
    pip = tmp_path / "pip"
    pip.write_text(r"""#!/bin/sh
cat <<'EOF'
:env:.find-links='/mine'
global.cert='/x'
global.extra-index-url='\nhttps://one.invalid/simple\nhttps://two.invalid/simple'
global.find-links='/theirs'
global.index-url='https://first.invalid/simple'
EOF
""")
    pip.chmod(0o755)
    expected = "--default-index https://first.invalid/simple --index https://one.invalid/simple"
    expected += " --index https://two.invalid/simple --find-links /mine"
    assert " ".join(releases.pip_indexes.__wrapped__(tmp_path)) == expected
    pip.write_text("#!/bin/sh\necho \":env:.no-index='1'\"\n")
    assert releases.pip_indexes.__wrapped__(tmp_path) == ["--no-index"]
    pip.write_text("#!/bin/sh\necho 'invalid file' >&2; exit 3\n")
    with pytest.raises(Error, match=r"`pip config list` fails: invalid file"):
        releases.pip_indexes.__wrapped__(tmp_path)


def test_the_recipes_index_is_tried_last_and_uvs_reason_is_reported(tmp_path):
    uv = f"#!/bin/sh\necho \"$@\" >> {tmp_path}/starts\necho 'error: Request failed\n  cause: dns error' >&2\nexit 2\n"
    for name, text in (("uv", uv), ("pip", "#!/bin/sh\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    recipe = "python_version = '3.12'\nwheel_index = 'https://cpu.invalid'\n"
    with pytest.raises(releases.NoWheelError, match=r"^x86_64: dns error$"):
        releases.resolve(["torch===9.9.9"], [], "x86_64", recipe, tmp_path)
    starts = (tmp_path / "starts").read_text().splitlines()
    assert [re.findall("--index (https://cpu.invalid)", line) for line in starts] == [[], ["https://cpu.invalid"]]
    assert all("--python-version 3.12 " in line for line in starts)
