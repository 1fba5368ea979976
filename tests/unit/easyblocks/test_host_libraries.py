"""Which of the host's libraries are bound into an image: real libraries, and records of images."""

import json
import shutil
import subprocess

import pytest

from pytorch_install import host_network

IMAGE = {
    "glibc": "2.35",
    "versions": {
        "libc.so.6": ["GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.34", "GLIBC_2.35", "GLIBC_PRIVATE"],
        "libstdc++.so.6": ["CXXABI_1.3", "GLIBCXX_3.4", "GLIBCXX_3.4.9", "GLIBCXX_3.4.30"],
    },
    "libraries": {"libc.so.6": "/lib/libc.so.6", "libstdc++.so.6": "/lib/libstdc++.so.6"},
}


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """A function that makes a library with gcc, and returns its path."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: it makes the libraries")
    place = tmp_path_factory.mktemp("host")

    def make(name, *needed, soname=None, version=None):
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        others = []
        if version:  # a library that provides a symbol of this version, by the name of the real one
            provided = "libc.so.6" if version.startswith("GLIBC_") else "libstdc++.so.6"
            provider = place / "providers" / version / provided
            provider.parent.mkdir(parents=True, exist_ok=True)
            script = provider.with_suffix(".map")
            script.write_text(f"{version} {{ it; }};")
            gcc(provider, "int it(void) { return 1; }", f"-Wl,--version-script={script}")
            others.append(provider)
        calls = "int it(void); int own(void) { return it(); }" if version else "int own(void) { return 1; }"
        gcc(path, calls, "-Wl,--no-as-needed", *[place / other for other in needed], *others, soname=soname)
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


def choose(*files, image=IMAGE, replace=False):
    """The names of the libraries that are bound, of files and patterns."""
    libraries = [library for entry in files for library in host_network.expand(str(entry))]
    return [library.name for library in host_network.choose(libraries, image, replace)]


def with_library(name, path):
    """The record of an image that has this library too."""
    return {**IMAGE, "libraries": {**IMAGE["libraries"], name: path}}


def test_libraries_that_the_image_lacks_are_chosen_with_what_they_need(build):
    cxi, fabric = build("libcxi.so.1"), build("libfabric.so.1", "libcxi.so.1")
    both, image = ["libfabric.so.1", "libcxi.so.1"], with_library("libcxi.so.1", "/usr/lib/libcxi.so.1")
    assert choose(fabric, cxi) == both
    assert choose(fabric, cxi, image=image) == ["libfabric.so.1"]
    assert choose(fabric, cxi, image=image, replace=True) == both


@pytest.mark.parametrize("name", ["libcurl.so.4", "libresolv.so.2"])
def test_replace_leaves_other_libraries_of_the_image_and_parts_of_glibc_alone(build, name):
    assert choose(build(name), image=with_library("libcurl.so.4", "/usr/lib/libcurl.so.4"), replace=True) == []


@pytest.mark.parametrize("version", ["GLIBC_ABI_DT_RELR", "GLIBCXX_3.4.32"])
def test_a_library_for_a_newer_glibc_or_libstdcxx_is_refused(build, version):
    library = build(f"{version}/libfabric.so.1", version=version)
    reason = rf"needs {version}, which the image lacks \(it has glibc 2.35\). Use a newer image"
    with pytest.raises(host_network.Refusal, match=reason):
        choose(library)
    versions = {provider: [*has, version] for provider, has in IMAGE["versions"].items()}
    assert choose(library, image={**IMAGE, "versions": versions}) == ["libfabric.so.1"]


def test_of_a_pattern_the_newest_directory_and_the_name_that_programs_load_are_chosen(build):
    newest = build("cray/1.22.0/lib64/libfabric.so.1.29", soname="libfabric.so.1")
    for name in ("libfabric.so.1", "libfabric.so"):
        (newest.parent / name).symlink_to(newest.name)
    build("cray/1.9.0/lib64/libfabric.so.1")
    (chosen,) = host_network.expand(f"{newest.parents[2]}/*/lib64/libfabric.so*")
    assert chosen.path == newest.parent / "libfabric.so.1"
    assert choose(newest.parent) == ["libfabric.so.1"]


def test_an_image_without_glibc_and_a_file_that_is_no_library_are_refused(tmp_path):
    (tmp_path / "libcxi.so.1").write_text("GROUP ( libcxi.so.1.5.0 )")
    with pytest.raises(host_network.Refusal, match=r"libcxi\.so\.1: not a 64-bit shared library\. Correct PYTORCH_"):
        choose(tmp_path)
    with pytest.raises(host_network.Refusal, match="the image has no glibc"):
        choose(image={**IMAGE, "glibc": None})


def test_without_readelf_the_sentence_names_the_package_that_has_it(build, monkeypatch):
    library = str(build("libcxi.so.1"))
    monkeypatch.setenv("PATH", "/nowhere")
    (line,) = host_network.lines_of("1", [library], IMAGE)
    assert line.startswith("nothing is bound: readelf not found") and "Install binutils" in line


def test_a_libfabric_of_the_image_is_named_with_the_value_that_replaces_it(build):
    fabric, its = str(build("libfabric.so.1")), "/opt/amazon/efa/lib/libfabric.so.1"
    (line,) = host_network.lines_of("1", [fabric], with_library("libfabric.so.1", its))
    assert line == f"the image's own are used: {its}. To bind the host's, export PYTORCH_HOST_NETWORK=replace"
    assert host_network.lines_of("replace", [fabric], with_library("libfabric.so.1", its)) == [fabric]


@pytest.mark.parametrize("named_by", ["profile", "installer"])
def test_the_list_has_what_the_profile_or_the_installer_names(build, prefix, tmp_path, named_by, monkeypatch):
    library, other = build("libcxi.so.1"), build("libother.so.1")
    (tmp_path / "libraries.json").write_text(json.dumps(IMAGE))
    (tmp_path / "profile").write_text(f'policy PYTORCH_HOST_NETWORK_FILES "{library}  {other}"\n')
    if named_by == "installer":
        monkeypatch.setenv("PYTORCH_HOST_NETWORK_FILES", str(other))
    host_network.write_host_network(str(tmp_path), str(tmp_path / "profile"))
    named = f"{library} {other}" if named_by == "profile" else str(other)
    assert (tmp_path / "host-network").read_text() == f"{named}\n" + "".join(
        f"{mode} {path}\n" for mode in ("1", "replace") for path in named.split()
    )
