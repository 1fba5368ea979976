"""Which of the host's directories a cluster profile binds into images, by a list of what is mounted."""

import os
import shutil
import subprocess

import pytest
from module_system import MODULE_SYSTEM, POLICY

TMPFS = "tmpfs {} tmpfs rw 0 0\n"


@pytest.fixture
def tcl(tmp_path):
    """A function that runs a line of Tcl with the procedures of the profiles; returns what it prints."""
    if shutil.which("tclsh") is None:
        pytest.skip("tclsh is not installed: Lmod and Environment Modules bring it")
    script = tmp_path / "line.tcl"

    def run(line, mounted="", mode="load", **env):
        (tmp_path / "mounts").write_text(mounted)
        start = MODULE_SYSTEM.replace("policy {*}", "set unused ")
        script.write_text(f"{start}\nset mounted [mounts {tmp_path}/mounts]\n{line}\n")
        command = ["tclsh", script, mode, POLICY]
        if os.geteuid() == 0:  # root may enter every directory
            command = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", *command]
            subprocess.run(["chmod", "a+rx", tmp_path, *tmp_path.parents[:-2]], check=True)
        env = {"PATH": "/usr/bin:/bin", **env}
        result = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
        assert (result.returncode, result.stderr) == (0, ""), result.stderr
        return result.stdout.strip()

    return run


def test_a_directory_that_the_user_may_enter_is_bound_and_a_file_or_a_closed_one_is_not(tcl, tmp_path):
    (tmp_path / "open one").mkdir()
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "closed").chmod(0)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("open one")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "circle").symlink_to("circle")
    expected = {"open one": 1, "closed": 0, "file": 0, "link": 1, "dangling": 0, "circle": 0, "absent": 0}
    found = {name: int(tcl(f"puts [may_bind {{{tmp_path}/{name}}} $mounted]")) for name in expected}
    assert found == expected


@pytest.mark.parametrize(
    ("line", "is_bound"),
    [
        ("host:/x {} nfs4 rw,hard 0 0", 1),
        ("lustre {} lustre rw 0 0", 1),
        ("auto.data {} autofs rw,fd=6 0 0", 0),
        ("auto.data {0} autofs rw,fd=6 0 0\nhost:/x {0} nfs4 rw 0 0", 0),
        ("fs {} fuse.sshfs rw,user_id=12345,group_id=0 0 0", 1),
        ("fs {} fuse.sshfs rw,user_id=7,group_id=0 0 0", 0),
        ("fs {} fuse.cvmfs rw,user_id=7,allow_other 0 0", 1),
        ("tmpfs {} tmpfs rw 0 0", 0),
    ],
)
def test_a_file_system_of_the_network_is_bound_without_asking_it(tcl, tmp_path, line, is_bound):
    """The directory is absent: whoever asks for it is told so."""
    for place in ("/absent", "/absent/below"):
        found = tcl(f"puts [may_bind {tmp_path}{place} $mounted]", line.format(f"{tmp_path}/absent") + "\n")
        assert int(found) == is_bound
    (tmp_path / "link").symlink_to("absent/below")
    assert int(tcl(f"puts [may_bind {tmp_path}/link $mounted]", line.format(f"{tmp_path}/absent") + "\n")) == is_bound


def test_a_blank_in_the_name_of_what_is_mounted_is_read(tcl, tmp_path):
    assert tcl("puts [dict keys $mounted]", TMPFS.format(r"/mnt/a\040b")) == "{/mnt/a b}"


def test_the_machines_own_top_level_directories_are_found_and_those_of_the_standard_are_not(tcl):
    found = [line for line in tcl("puts [join [directories_of_machine] \\n]").splitlines() if line.count("/") == 1]
    standard = {"bin", "boot", "dev", "etc", "home", "opt", "proc", "root", "run", "sbin", "sys", "tmp", "usr", "var"}
    other = {
        f"/{name}" for name in os.listdir("/") if name not in standard and not name.startswith((".", "lib", "lost"))
    }
    assert other - {"/mnt", "/media", "/srv", "/runscripts", "/payload", "/user-software"} <= set(found)
    assert not {f"/{name}" for name in standard} & set(found)


@pytest.mark.parametrize(("own", "expected"), [({}, "{0}/a,{0}/b"), ({"PYTORCH_BIND": "0"}, "0")])
def test_the_variable_lists_what_exists_and_the_users_own_value_takes_precedence(tcl, tmp_path, own, expected):
    for name in ("a", "b", "comma,"):
        (tmp_path / name).mkdir()
    line = (
        f"bind_directories {{{tmp_path}/a {tmp_path}/absent {tmp_path}/b {tmp_path}/comma,}}; puts $env(PYTORCH_BIND)"
    )
    assert tcl(line, **own) == expected.format(tmp_path)
