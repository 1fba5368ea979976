"""Locks of a release: the same versions on each machine, the hashes of the wheels that pip prefers, pip's indexes."""

import re

import pytest

from releases import locks
from releases.locks import Lock, Package, lock_text, pip_indexes, read_lock, renew, wheels_of
from testbed.layout import TestbedError as Error  # pytest would take it for a class of tests

MACHINES = ["x86_64", "aarch64"]
OLD = Lock(
    "# torch 2.15.0 for CUDA 13.2\n# requirements: torch cmake<4\n# machines: x86_64\n"
    "torch==2.15.0\nsix==1.0\nnumpy==1.0\n",
    ["torch", "cmake<4"],
    ["x86_64"],
    {"torch": Package("2.15.0", ()), "six": Package("1.0", ()), "numpy": Package("1.0", ())},
)  # fmt: skip


def resolver(found, asked):
    """A stand-in for uv with the packages of each machine, which records the questions."""

    def resolve(requirements, machine, constraints):
        asked.append((requirements, constraints))
        return found[machine]

    return resolve


def packages(hashes, **versions):
    return {name: Package(version, (f"{hashes}-{name}" if name != "numpy" else "pure",))
            for name, version in versions.items()}  # fmt: skip


def test_each_machine_gets_the_same_versions_and_the_lock_all_hashes():
    asked = []
    found = {machine: packages(machine, torch="2.16.0", numpy="2.0", cmake="3.31") for machine in MACHINES}
    new = renew(OLD, "2.16.0", MACHINES, resolver(found, asked))
    assert asked == [(["torch===2.16.0", "cmake<4"], []),
                     (["torch===2.16.0", "cmake<4"], ["torch==2.16.0", "numpy==2.0", "cmake==3.31"])]  # fmt: skip
    assert new["torch"].hashes == ("x86_64-torch", "aarch64-torch")
    assert new["numpy"].hashes == ("pure",)
    assert lock_text(OLD, new, MACHINES, lambda line: line.replace("2.15.0", "2.16.0")).splitlines() == [
        "# torch 2.16.0 for CUDA 13.2",
        "# requirements: torch cmake<4",
        "# machines: x86_64 aarch64",
        "torch==2.16.0 --hash=sha256:x86_64-torch --hash=sha256:aarch64-torch",
        "numpy==2.0 --hash=sha256:pure",
        "cmake==3.31 --hash=sha256:x86_64-cmake --hash=sha256:aarch64-cmake",
    ]


def test_a_package_that_one_machine_does_not_need_is_an_error():
    found = {"x86_64": packages("a", torch="2.16.0", triton="3.0"), "aarch64": packages("b", torch="2.16.0")}
    with pytest.raises(Error, match=r"torch 2\.16\.0 needs triton only on one of x86_64, aarch64.*--machine"):
        renew(OLD, "2.16.0", MACHINES, resolver(found, []))


def test_a_lock_without_its_requirements_is_an_error(tmp_path):
    path = tmp_path / "lock.txt"
    path.write_text("# machines: x86_64\ntorch==2.15.0\n")
    with pytest.raises(Error, match=r"lock\.txt: no line `# requirements: \.\.\.`"):
        read_lock(path)
    path.write_text(OLD.text)
    assert read_lock(path) == OLD


def test_of_several_wheels_the_lock_has_the_one_that_pip_prefers():
    names = {
        "fonttools": ["fonttools-4.0-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
                      "fonttools-4.0-py3-none-any.whl"],
        "cmake": ["cmake-3.0-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
                  "cmake-3.0-py3-none-manylinux_2_12_x86_64.manylinux2010_x86_64.whl"],
        "psutil": ["psutil-7.0-cp311-cp311-manylinux2014_x86_64.whl", "psutil-7.0-cp36-abi3-manylinux_2_28_x86_64.whl"],
        "torch": ["torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl"],
    }  # fmt: skip
    text = ""
    for name, files in names.items():
        wheels = ", ".join(f'{{url = "https://x.invalid/{file}", hashes = {{sha256 = "{number}"}}}}'
                           for number, file in reversed(list(enumerate(files))))  # fmt: skip
        text += f'[[packages]]\nname = "{name}"\nversion = "1.0"\nwheels = [{wheels}]\n'
    assert {name: package.hashes for name, package in wheels_of(text).items()} == dict.fromkeys(names, ("0",))


def test_uv_gets_the_indexes_of_pips_configuration(tmp_path, monkeypatch):
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
    expected = ["--default-index", "https://first.invalid/simple", "--index", "https://one.invalid/simple",
                "--index", "https://two.invalid/simple", "--find-links", "/mine"]  # fmt: skip
    assert pip_indexes(tmp_path) == expected
    pip.write_text("#!/bin/sh\necho \":env:.no-index='1'\"\n")
    assert pip_indexes(tmp_path) == ["--no-index"]


@pytest.fixture
def uv(tmp_path):
    """A function that makes a uv which fails with a message and counts its starts."""

    def make(message):
        body = f"echo \"$@\" >> {tmp_path}/starts\nprintf %s '{message}' >&2\nexit 2"
        (tmp_path / "uv").write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "pip").write_text("#!/bin/sh\n")
        for name in ("uv", "pip"):
            (tmp_path / name).chmod(0o755)
        return tmp_path

    return make


def test_an_index_that_does_not_answer_is_told_from_one_without_the_version(uv, tmp_path):
    tools = uv("error: Request failed\n  cause: error sending request for url (x)\n  cause: dns error")
    with pytest.raises(locks.NotReachedError, match=r"^https://cpu\.invalid does not answer: dns error$"):
        locks.Resolver(tools, "3.11", "https://cpu.invalid").resolve(["torch===9.9.9"], "x86_64", [])
    starts = (tmp_path / "starts").read_text().splitlines()
    assert [re.findall("--index (https://cpu.invalid)", line) for line in starts] == [[], ["https://cpu.invalid"]]
    tools = uv("error: No solution found\n  cause: Because there is no version of torch==9.9.9")
    with pytest.raises(Error, match=r"No lock for Python 3\.11 on x86_64: Because there is no version of torch"):
        locks.Resolver(tools, "3.11").resolve(["torch===9.9.9"], "x86_64", [])
