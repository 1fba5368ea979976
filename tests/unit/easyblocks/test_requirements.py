"""What a requirements lock may hold: pins with hashes, and nothing that makes pip look elsewhere or run code."""

import pytest
from easybuild.easyblocks.generic.lockedvenv import read_lock, requirements
from easybuild.tools.build_log import EasyBuildError

from pytorch_install.parameters import machines_of

HASH = "--hash=sha256:" + "5d" * 32


def read(tmp_path, text):
    path = tmp_path / "lock.txt"
    path.write_text(text)
    return read_lock(str(path))


def test_a_lock_has_pins_comments_and_blank_lines(tmp_path):
    other = HASH.replace("5d", "6e")
    pins = read(
        tmp_path,
        f"""# torch
torch==2.13.0+cpu {HASH}  # the CPU build

typing-extensions==4.16.0 \\
    {HASH} \\
    {other}
zope.interface==1!7.0
""",
    )
    assert [(pin.line, str(pin), len(pin.hashes)) for pin in pins] == [
        (2, "torch==2.13.0+cpu", 1),
        (6, "typing-extensions==4.16.0", 2),
        (7, "zope.interface==1!7.0", 0),
    ]
    assert requirements(pins).splitlines()[1] == f"typing-extensions==4.16.0 {HASH} {other}"


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://elsewhere.invalid/simple",
        "--no-binary :all:",
        "-r other.txt",
        "-e .",
        f"torch==2.0 {HASH} --global-option=x",
        f"torch==2.0 --config-settings=x=y {HASH}",
        f"torch @ https://elsewhere.invalid/torch.whl {HASH}",
        f"./torch-2.0-py3-none-any.whl {HASH}",
        f"torch[extra]==2.0 {HASH}",
        f"torch==2.0 ; python_version>'3' {HASH}",
        "torch",
        "torch>=2.0",
        "torch==2.*",
        "torch===2.0",
        "torch==${HOME}",
        "torch==2.0 --hash=md5:5d5d",
        f"torch==2.0 {HASH[:-1]}D",
        f"torch==2.0 {HASH[:-1]}",
        "torch==2.0 \\",
    ],
)
def test_anything_else_is_refused_with_its_line(tmp_path, line):
    with pytest.raises(EasyBuildError, match=r"lock.txt: line [23]: `.*` is not one exact version"):
        read(tmp_path, f"numpy==2.0 {HASH}\n{line}\nsympy==1.0 {HASH}\n")


def test_a_package_is_pinned_once(tmp_path):
    with pytest.raises(EasyBuildError, match=r"lock.txt: line 3: Typing.Extensions is in line 1 already"):
        read(tmp_path, f"typing_extensions==4.0 {HASH}\n\nTyping.Extensions==4.1 {HASH}\n")


@pytest.mark.parametrize(
    ("text", "machines"),
    [
        ("# torch\n# machines: x86_64 aarch64\ntorch==2.0\n", ["x86_64", "aarch64"]),
        ("# machines: x86_64\n", ["x86_64"]),
        ("# torch for machines: all\ntorch==2.0\n", None),
    ],
)
def test_a_lock_declares_its_machines_or_leaves_them_to_pip(tmp_path, text, machines):
    (tmp_path / "lock.txt").write_text(text)
    assert machines_of(str(tmp_path / "lock.txt")) == machines
