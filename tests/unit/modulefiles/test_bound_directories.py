"""Which of the host's directories a cluster profile binds into images, by a list of what is mounted."""

import os

import pytest

TMPFS = "tmpfs {} tmpfs rw 0 0\n"


@pytest.fixture
def puts(tcl, tmp_path):
    """A function that returns the value of an expression of Tcl, with a list of what is mounted."""

    def run(expression, mounted="", before="", **env):
        (tmp_path / "mounts").write_text(mounted)
        result = tcl(f"set mounted [mounts {tmp_path}/mounts]\n{before}\nputs {expression}", **env)
        assert result.stderr == ""
        return result.stdout.strip()

    return run


def test_a_directory_that_the_user_may_enter_is_bound_and_a_file_or_a_closed_one_is_not(puts, tmp_path):
    (tmp_path / "open one").mkdir()
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "closed").chmod(0)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("open one")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "circle").symlink_to("circle")
    expected = {"open one": 1, "closed": 0, "file": 0, "link": 1, "dangling": 0, "circle": 0, "absent": 0}
    found = {name: int(puts(f"[may_bind {{{tmp_path}/{name}}} $mounted]")) for name in expected}
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
def test_a_file_system_of_the_network_is_bound_without_asking_it(puts, tmp_path, line, is_bound):
    """The directory is absent: whoever asks for it is told so."""
    for place in ("/absent", "/absent/below"):
        found = puts(f"[may_bind {tmp_path}{place} $mounted]", line.format(f"{tmp_path}/absent") + "\n")
        assert int(found) == is_bound
    (tmp_path / "link").symlink_to("absent/below")
    assert int(puts(f"[may_bind {tmp_path}/link $mounted]", line.format(f"{tmp_path}/absent") + "\n")) == is_bound


def test_a_blank_in_the_name_of_what_is_mounted_is_read(puts, tmp_path):
    assert puts("[dict keys $mounted]", TMPFS.format(r"/mnt/a\040b")) == "{/mnt/a b}"


def test_the_machines_own_top_level_directories_are_found_and_those_of_the_standard_are_not(puts):
    found = [line for line in puts("[join [directories_of_machine] \\n]").splitlines() if line.count("/") == 1]
    standard = {"bin", "boot", "dev", "etc", "home", "opt", "proc", "root", "run", "sbin", "sys", "tmp", "usr", "var"}
    own = {f"/{name}" for name in {*os.listdir("/")} - standard if not name.startswith((".", "lib", "lost"))}
    assert own - {"/mnt", "/media", "/srv", "/runscripts", "/payload", "/user-software"} <= set(found)
    assert not {f"/{name}" for name in standard} & set(found)


@pytest.mark.parametrize(("own", "expected"), [({}, "{0}/a,{0}/b"), ({"PYTORCH_BIND": "0"}, "0")])
def test_the_variable_lists_what_exists_and_the_users_own_value_takes_precedence(puts, tmp_path, own, expected):
    for name in ("a", "b", "comma,"):
        (tmp_path / name).mkdir()
    bind = f"bind_directories {{{tmp_path}/a {tmp_path}/absent {tmp_path}/b {tmp_path}/comma,}}"
    assert puts("$env(PYTORCH_BIND)", before=bind, **own) == expected.format(tmp_path)
