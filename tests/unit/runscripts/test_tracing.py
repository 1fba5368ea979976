"""The permission for pytorch-stacks to trace a rank, where the kernel lets only parents trace."""

import subprocess
import sys

import pytest
from pytorch_launch import caches, launch

#: What `prctl` gets: PR_SET_PTRACER and PR_SET_PTRACER_ANY, prctl(2).
PERMISSION = (0x59616D61, -1, 0, 0, 0)


@pytest.fixture
def permissions(monkeypatch):
    """A function that becomes Python on a node with this value of kernel.yama.ptrace_scope; what prctl got."""

    def run(scope, uid_map="         0          0 4294967295\n", **variables):
        given = []
        fakes = {"dlopen": lambda *_: 1, "dlsym": lambda _, name: name}
        fakes["call_function"] = lambda *call: given.append(call)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launch, "read", lambda path: scope if path == "/proc/sys/kernel/yama/ptrace_scope" else None)
            patch.setattr(caches, "read", {"/proc/self/uid_map": uid_map}.get)
            patch.setattr(launch.os, "execve", lambda *_: given.append("python"))
            for name, fake in fakes.items():
                patch.setattr(f"_ctypes.{name}", fake)
            patch.setattr(launch._signal, "signal", lambda *_: None)
            with pytest.raises(launch.LaunchError, match="not found on PATH"):
                launch.become_python([], {"PATH": "/bin", **variables})
        return given[:-1]  # `execve` returns here, so python3 is tried too

    return run


def test_only_where_the_kernel_lets_parents_alone_trace_a_rank_gives_the_permission(permissions):
    assert permissions("1") == [("prctl", PERMISSION), "python"]
    for scope in (None, "0", "2", "3"):
        assert permissions(scope) == ["python"]
    # in a user namespace it is not needed, and a user can refuse it
    for uid_map in ("      1000       1000          1\n", None):
        assert permissions("1", uid_map=uid_map) == ["python"]
    assert permissions("1", PYTORCH_LAUNCH_TRACEABLE="0") == ["python"]


def test_a_python_without_ctypes_launches_all_the_same(monkeypatch):
    monkeypatch.setattr(caches, "read", lambda _: "0 0 4294967295")
    monkeypatch.setitem(sys.modules, "_ctypes", None)
    assert launch.allow_tracing() is None


def test_the_call_reaches_the_kernel(runscripts, tmp_path):
    """strace names the call, also where the kernel has no Yama and refuses it."""
    code = f"import sys; sys.path.insert(0, {str(runscripts)!r}); from pytorch_launch import launch"
    code += "; launch.allow_tracing()"
    try:
        command = ["strace", "-e", "trace=prctl", "-o", tmp_path / "calls", sys.executable, "-I", "-S", "-c", code]
        subprocess.run(command, check=True, timeout=300, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"strace cannot trace here: {error}")
    assert "prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY" in (tmp_path / "calls").read_text()
