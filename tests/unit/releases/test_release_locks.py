"""Locks of a release: packages of one machine, pip's indexes, and versions in other texts."""

import pytest

from testbed.layout import TestbedError as Error  # pytest would take it for a class of tests
from tools.releases import __main__ as releases
from tools.releases import indexes

CUDA = releases.replacer("2.15.0", "2.16.1", "13.2", "14.0")
OLD = "# requirements: torch\ntorch==2.15.0\n"


def test_a_package_that_one_machine_does_not_need_is_an_error(monkeypatch):
    found = {"a": {"torch==2.16.0": ["1"], "triton==3.0": ["2"]}, "b": {"torch==2.16.0": ["3"]}}
    monkeypatch.setattr(releases, "resolve", lambda _torch, _pins, machine, *_: found[machine])
    with pytest.raises(releases.NoWheelError, match=r"triton==3\.0: needed on one of a, b only.*--machine"):
        releases.renew(OLD, "", "2.16.0", list(found), None)


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
    assert " ".join(indexes.pip_indexes.__wrapped__(tmp_path)) == expected
    pip.write_text("#!/bin/sh\necho \":env:.no-index='1'\"\n")
    assert indexes.pip_indexes.__wrapped__(tmp_path) == ["--no-index"]
    pip.write_text("#!/bin/sh\necho 'invalid file' >&2; exit 3\n")
    with pytest.raises(Error, match=r"`pip config list` fails: invalid file"):
        indexes.pip_indexes.__wrapped__(tmp_path)
