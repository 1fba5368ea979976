"""Which of the host's libraries are bound into an image: real libraries, and the host's Python with a loader's path."""

import shutil
import subprocess
import sys

import pytest

from pytorch_install import host_network

#: Starts Python with libraries as a runtime does: those of the image, in the directory `{}`, then those of the list.
IMAGE = """place=$(mktemp -d) && trap 'rm -r "$place"' EXIT
IFS=, && for file in $SINGULARITY_CONTAINLIBS; do ln -s "$file" "$place"; done
LD_LIBRARY_PATH={}:$place "$0" "$@"
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """A function that makes a library with gcc, and returns its path."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: it makes the libraries")
    place = tmp_path_factory.mktemp("host")

    def make(name, *needed, soname=None, version=None):
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        others = [place / other for other in needed]
        if version:  # a library that provides a symbol of this version, by the name of the real one
            provided = "libc.so.6" if version.startswith("GLIBC_") else "libstdc++.so.6"
            provider = place / "providers" / version / provided
            provider.parent.mkdir(parents=True, exist_ok=True)
            script = provider.with_suffix(".map")
            script.write_text(f"{version} {{ it; }};")
            gcc(provider, "int it(void) { return 1; }", f"-Wl,--version-script={script}")
            others.append(provider)
        calls = "int it(void); int own(void) { return it(); }" if version else "int own(void) { return 1; }"
        gcc(path, calls, "-Wl,--no-as-needed", *others, soname=soname)
        return path

    def gcc(path, code, *options, soname=None):
        named = f"-Wl,-soname,{soname or path.name}"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-nostdlib", named, "-o", path, "-xc", "-", "-xnone", *options],
            input=code,
            text=True,
            check=True,
        )

    return make


@pytest.fixture
def choose(prefix, tmp_path):
    """A function that returns the lines for files, with an image that has some libraries of its own."""

    def choose(*files, own=(), mode="1"):
        (tmp_path / "own").mkdir(exist_ok=True)
        for path in own:
            shutil.copy(path, tmp_path / "own")
        command = ["bash", "-c", IMAGE.format(tmp_path / "own"), sys.executable]
        return host_network.lines_of(mode, [str(file) for file in files], command)

    return choose


def test_libraries_that_the_image_lacks_are_chosen_with_what_they_need(build, choose):
    cxi = build("libcxi.so.1")
    fabric = build("librccl-net.so.1", "libcxi.so.1")
    assert choose(fabric, cxi) == [str(fabric), str(cxi)]
    (line,) = choose(fabric)
    assert line.startswith(
        "nothing is bound: the image cannot load the host's libraries (libcxi.so.1 => not found). Add"
    )
    assert choose(fabric, cxi, own=[cxi])[0] == str(fabric)
    assert choose(fabric, cxi, own=[cxi], mode="replace") == [str(fabric), str(cxi)]


def test_libraries_of_gpus_are_those_that_torch_or_the_runtime_brings(build, choose):
    build("libcuda.so.1")
    plugin = build("libnccl-net.so", "libcuda.so.1")
    assert choose(plugin) == [str(plugin)]


def test_replace_leaves_other_libraries_of_the_image_alone(build, choose):
    library = build("libcurl.so.4")
    assert choose(library, own=[library], mode="replace") == []


@pytest.mark.parametrize("version", ["GLIBC_2.99", "GLIBCXX_3.4.99"])
def test_a_library_for_a_newer_glibc_or_libstdcxx_is_refused(build, choose, version):
    (line,) = choose(build(f"{version}/librccl-net.so.1", version=version))
    assert f"version `{version}' not found (required by " in line and line.startswith("nothing is bound: ")


def test_of_a_pattern_the_newest_directory_and_the_name_that_programs_load_are_chosen(build, choose):
    newest = build("cray/1.22.0/lib64/librccl-net.so.1.29", soname="librccl-net.so.1")
    for name in ("librccl-net.so.1", "librccl-net.so"):
        (newest.parent / name).symlink_to(newest.name)
    build("cray/1.9.0/lib64/librccl-net.so.1")
    expected = [str(newest.parent / "librccl-net.so.1")]
    (newest.parent / "librccl-net.so.1.29-gdb.py").write_text("import gdb\n")  # no library
    assert choose(f"{newest.parents[2]}/*/lib64/librccl-net.so*") == choose(newest.parent) == expected


def test_an_image_without_glibc_and_files_that_are_no_libraries_are_refused(build, choose, tmp_path, monkeypatch):
    library = build("libcxi.so.1")
    musl = ["bash", "-c", "echo Python 3.12.1", "python3"]  # its loader does not know the variable
    assert "(it has no glibc)" in host_network.lines_of("1", [str(library)], musl)[0]
    (tmp_path / "libcxi.so.1").write_text("GROUP ( libcxi.so.1.5.0 )")
    (line,) = choose(tmp_path / "libcxi.so.1")
    assert line.startswith("nothing is bound: ") and "libcxi.so.1" in line
    (line,) = choose("/nowhere/lib*.so")
    assert line == "nothing is bound: no such file on this host: /nowhere/lib*.so. Correct PYTORCH_HOST_NETWORK_FILES"
    monkeypatch.setenv("PATH", "/nowhere")
    assert "readelf not found" in choose(library)[0]


def test_a_plugin_of_the_image_is_named_with_the_value_that_replaces_it(build, choose, tmp_path):
    fabric = build("librccl-net.so.1")
    (line,) = choose(fabric, own=[fabric])
    its = tmp_path / "own/librccl-net.so.1"
    assert line == f"the image's own are used: {its}. To bind the host's, export PYTORCH_HOST_NETWORK=replace"
    assert choose(fabric, own=[fabric], mode="replace") == [str(fabric)]
    plugin = build("libnccl-net.so", "librccl-net.so.1")  # the image's needs one that is not listed
    assert choose(plugin, own=[fabric, plugin], mode="replace") == [str(plugin)]


@pytest.mark.parametrize("named_by", ["profile", "installer"])
def test_the_list_has_what_the_profile_or_the_installer_names(build, prefix, tmp_path, named_by, monkeypatch):
    library, other = build("libcxi.so.1"), build("libother.so.1")
    (tmp_path / "profile").write_text(f'policy PYTORCH_HOST_NETWORK_FILES "{library}  {other}"\n')
    if named_by == "installer":
        monkeypatch.setenv("PYTORCH_HOST_NETWORK_FILES", str(other))
    python = ["bash", "-c", IMAGE.format("/nowhere"), sys.executable]
    host_network.write_host_network(str(tmp_path), str(tmp_path / "profile"), python)
    named = f"{library} {other}" if named_by == "profile" else str(other)
    assert (tmp_path / "host-network").read_text() == f"{named}\n" + "".join(
        f"{mode} {path}\n" for mode in ("1", "replace") for path in named.split()
    )
