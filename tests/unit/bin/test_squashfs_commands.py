"""make-squashfs and unmake-squashfs: nothing is lost, wherever they end; on stand-ins for mksquashfs and the image."""

import fcntl
import os
import tarfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

#: In place of a program: kills the command that calls it with everything that it started.
KILL = "#!/bin/bash\nPATH=${{PATH#*:}}\n{}\nkill -9 0\n"


def one_sentence(result):
    """The one line that a command failed with."""
    assert result.returncode == 1, result.stdout
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def pack(installation, clean=False):
    """Pack user-software, and delete the directory if asked."""
    assert installation.run("make-squashfs").returncode == 0
    assert not clean or installation.run("make-squashfs", "--clean").returncode == 0


def test_packing_and_unpacking_keep_every_file_and_the_other_form_until_clean(installation):
    files = installation.in_use()
    for command in ("make-squashfs", "unmake-squashfs", "make-squashfs", "unmake-squashfs"):
        result = installation.run(command)
        assert result.returncode == 0, result.stderr
        assert "Unload and load the module" in result.stdout
        assert "make-squashfs --clean" in result.stdout
        assert installation.in_use() == files
        assert installation.left() == {"1.0", "1.0.squashfs"}
    for command, left in [("make-squashfs", {"1.0.squashfs"}), ("unmake-squashfs", {"1.0"})]:
        (installation.root / "user-software").unlink()
        assert installation.run(command).returncode == 0
        assert (installation.root / "user-software").resolve() == installation.directory.resolve()
        assert installation.run("make-squashfs", "--clean").returncode == 0
        assert installation.in_use() == files
        assert installation.left() == left


@pytest.mark.parametrize(
    ("command", "bind", "options"),
    [("make-squashfs", "", ""), ("unmake-squashfs", ".squashfs", ":ro,image-src=.")],
)
def test_what_this_shell_still_mounts_is_not_cleaned_before_the_module_is_loaded_again(
    installation, command, bind, options
):
    if command == "unmake-squashfs":
        pack(installation, clean=True)
    installation.run(command)
    loaded = f"{installation.directory}{bind}"
    before = {"__PYTORCH_USER_SOFTWARE": f"{loaded}:/user-software{options}"}
    sentence = one_sentence(installation.run("make-squashfs", "--clean", **before))
    assert f"this shell still mounts {loaded}. Unload and load the module" in sentence
    assert installation.left() == {"1.0", "1.0.squashfs"}
    other = installation.packed if command == "make-squashfs" else installation.directory
    after = {"__PYTORCH_USER_SOFTWARE": f"{other}:/user-software"}
    assert installation.run("make-squashfs", "--clean", **after).returncode == 0
    assert installation.left() == {other.name}


@pytest.mark.parametrize("moment", [pytest.param("before", marks=pytest.mark.thorough), "after"])
@pytest.mark.parametrize(
    ("command", "program"),
    [("make-squashfs", name) for name in ("rm", "mktemp", "mksquashfs", "singularity", "sync", "mv")]
    + [("unmake-squashfs", name) for name in ("rm", "mktemp", "singularity", "touch", "sync", "mv")]
    + [("make-squashfs --clean", name) for name in ("rm", "mktemp", "singularity", "mv")],
)
def test_a_kill_at_any_moment_loses_nothing_and_the_next_call_works(installation, command, program, moment):
    files = installation.in_use()
    if command != "make-squashfs":
        pack(installation, clean=command == "unmake-squashfs")
    installation.program(program, KILL.format('"${0##*/}" "$@"' if moment == "after" else ""), installation.failing)
    result = installation.run(*command.split())
    assert result.returncode == -9
    assert installation.in_use() == files
    (installation.failing / program).unlink()
    again = installation.run(*command.split())
    finished = ("already packed", "not packed", "nothing to clean")  # the kill came after the last step
    assert again.returncode == 0 or any(text in again.stderr for text in finished), again.stderr
    assert installation.in_use() == files
    assert installation.left() == ({"1.0.squashfs"} if "--clean" in command else {"1.0", "1.0.squashfs"})


def test_only_one_process_packs_also_if_only_the_command_of_the_first_was_killed(installation):
    with (installation.store / ".1.0.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # which its mksquashfs has inherited
        sentence = one_sentence(installation.run("make-squashfs"))
    assert "another process is packing or unpacking" in sentence
    assert installation.left() == {"1.0"}


def test_a_program_that_fails_changes_nothing(installation, tmp_path):
    files = installation.in_use()
    (tmp_path / "env").mkdir()
    (tmp_path / "env.sqsh").write_text("before")
    installation.program("mksquashfs", "#!/bin/bash\n[[ $1 = -* ]] || exit 1\n")
    assert "nothing has changed" in one_sentence(installation.run("make-squashfs", tmp_path / "env"))
    assert (tmp_path / "env.sqsh").read_text() == "before"
    # a file that lacks something
    installation.program("mksquashfs", '#!/bin/bash\n[[ $1 = -* ]] || tar -cf "$2" -C "$1" --exclude module.py .\n')
    missing = f"Only in {installation.directory}/venv/pytorch/lib: module.py"
    assert f"nothing has changed ({missing}). Try again" in one_sentence(installation.run("make-squashfs"))
    # an image without diff: the host's bash stands for the image's
    (installation.programs / "bash").unlink()
    without = '#!/bin/bash\n[[ $1 = -c ]] || exec /bin/bash "$@"\n'
    installation.program("bash", without + 'exec /bin/bash -c "${2/\\/usr\\/bin:\\/bin//nowhere}" "${@:3}"\n')
    sentence = one_sentence(installation.run("make-squashfs"))
    assert sentence.endswith("nothing has changed: the image has no diff or no find\n")
    assert (installation.in_use(), installation.left()) == (files, {"1.0"})


@pytest.mark.parametrize(
    ("command", "variables", "message"),
    [
        ("make-squashfs /nowhere", {}, "no such directory: /nowhere"),
        ("unmake-squashfs --clean", {}, "unknown arguments '--clean'"),
        ("unmake-squashfs", {}, "not packed"),
        ("make-squashfs --clean", {}, "nothing to clean"),
        ("unmake-squashfs", {"APPTAINER_CONTAINER": "/image.sif"}, "Leave the container"),
        ("make-squashfs", {"EBROOTPYTORCH": "/elsewhere"}, "Load its module"),
        ("make-squashfs", {"SIFPYTORCH": "/elsewhere.sif"}, "Load its module"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(installation, command, variables, message):
    assert message in one_sentence(installation.run(*command.split(), **variables))


def test_any_environment_is_packed_beside_it_and_the_line_to_use_is_printed(installation, tmp_path):
    environment = tmp_path / "my env"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "tool").write_text("a tool")
    for _ in range(2):
        result = installation.run("make-squashfs", f"{environment}/")
        assert (result.returncode, result.stderr) == (0, "")
        assert f"export APPTAINER_BIND='{environment}.sqsh:{environment}:ro,image-src=/' " in result.stdout
    with tarfile.open(f"{environment}.sqsh") as packed:
        assert packed.extractfile("./bin/tool").read() == b"a tool"
    assert {path.name for path in tmp_path.iterdir() if "my env" in path.name} == {"my env", "my env.sqsh"}


@pytest.mark.parametrize("name", [".env.work", ".env.lock"])
@pytest.mark.parametrize("create", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("precious")])
def test_names_that_another_user_created_beside_the_directory_are_not_used(installation, tmp_path, name, create):
    public = tmp_path / "public"
    (public / "env").mkdir(parents=True)
    (public / "precious").write_text("content")
    public.chmod(0o777)
    create(public / name)
    assert installation.run("make-squashfs", public / "env").returncode == 0
    assert (public / "precious").read_text() == "content"
    assert {path.name for path in public.iterdir()} == {"env", "env.sqsh", "precious", name}


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("module.py", lambda path: path.write_text("value = 2\n")),
        ("empty", lambda path: path.chmod(0o700)),
        ("link", lambda path: (path.unlink(), path.symlink_to("empty"))),
        ("link", lambda path: (path.unlink(), path.write_text("value = 1\n"))),
        ("empty", lambda path: (path.rmdir(), path.touch())),
    ],
    ids=["content", "permissions", "link", "link-to-the-same-content", "type"],
)
def test_a_changed_file_is_named(installation, path, change):
    pack(installation)
    change(installation.directory / "venv" / "pytorch" / "lib" / path)
    files = installation.in_use()
    sentence = one_sentence(installation.run("make-squashfs", "--clean"))
    assert f"{installation.directory} differs from the packed file (" in sentence
    assert f"venv/pytorch/lib/{path}" in sentence
    assert installation.in_use() == files
