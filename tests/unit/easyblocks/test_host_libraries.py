"""Which of the host's libraries are bound into an image: real libraries, and records of images."""

import json
import shutil
import subprocess

import pytest

IMAGE = {
    "glibc": "2.35",
    "versions": {
        "libc.so.6": ["GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.34", "GLIBC_2.35", "GLIBC_PRIVATE"],
        "libstdc++.so.6": ["CXXABI_1.3", "GLIBCXX_3.4", "GLIBCXX_3.4.9", "GLIBCXX_3.4.30"],
    },
    "libraries": {"libc.so.6": "/lib/libc.so.6", "libstdc++.so.6": "/lib/libstdc++.so.6"},
}


@pytest.fixture
def host_network():
    """The easyblocks' module."""
    from pytorch_install import host_network

    return host_network


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


def choose(program, files, image, replace=False):
    return program.choose([library for entry in files for library in program.expand(entry)], image, replace)


def names(libraries):
    return [library.name for library in libraries]


def test_libraries_that_the_image_lacks_are_chosen_with_what_they_need(host_network, build):
    cxi, fabric = build("libcxi.so.1"), build("libfabric.so.1", "libcxi.so.1")
    assert names(choose(host_network, [str(fabric), str(cxi)], IMAGE)) == ["libfabric.so.1", "libcxi.so.1"]
    with pytest.raises(host_network.Refusal, match=r"libfabric\.so\.1 needs libcxi\.so\.1, which the image lacks"):
        choose(host_network, [str(fabric)], IMAGE)
    image = {**IMAGE, "libraries": {**IMAGE["libraries"], "libcxi.so.1": "/usr/lib/libcxi.so.1"}}
    assert names(choose(host_network, [str(fabric), str(cxi)], image)) == ["libfabric.so.1"]
    both = ["libfabric.so.1", "libcxi.so.1"]
    assert names(choose(host_network, [str(fabric), str(cxi)], image, replace=True)) == both


@pytest.mark.parametrize("name", ["libcurl.so.4", "libresolv.so.2"])
def test_replace_leaves_other_libraries_of_the_image_and_parts_of_glibc_alone(host_network, build, name):
    image = {**IMAGE, "libraries": {**IMAGE["libraries"], "libcurl.so.4": "/usr/lib/libcurl.so.4"}}
    assert choose(host_network, [str(build(name))], image, replace=True) == []


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("GLIBC_2.38", "glibc 2.35"),
        ("GLIBC_ABI_DT_RELR", "glibc 2.35"),
        ("GLIBCXX_3.4.32", r"GLIBCXX_3\.4\.30 in libstdc\+\+\.so\.6"),
    ],
)
def test_a_library_for_a_newer_glibc_or_libstdcxx_is_refused(host_network, build, version, found):
    library = build(f"{version}/libfabric.so.1", version=version)
    with pytest.raises(host_network.Refusal, match=f"needs {version}, and the image has {found}. Use a newer image"):
        choose(host_network, [str(library)], IMAGE)
    image = {**IMAGE, "versions": {provider: [*has, version] for provider, has in IMAGE["versions"].items()}}
    assert names(choose(host_network, [str(library)], image)) == ["libfabric.so.1"]


def test_of_a_pattern_the_newest_directory_and_the_name_that_programs_load_are_chosen(host_network, build, tmp_path):
    newest = build("cray/1.22.0/lib64/libfabric.so.1.29", soname="libfabric.so.1")
    for name in ("libfabric.so.1", "libfabric.so"):
        (newest.parent / name).symlink_to(newest.name)
    build("cray/1.9.0/lib64/libfabric.so.1")
    chosen = choose(host_network, [f"{newest.parents[2]}/*/lib64/libfabric.so*"], IMAGE)
    assert [library.path for library in chosen] == [newest.parent / "libfabric.so.1"]
    assert names(choose(host_network, [str(newest.parent)], IMAGE)) == ["libfabric.so.1"]


def test_an_image_without_glibc_and_a_file_that_is_no_library_are_refused(host_network, tmp_path):
    (tmp_path / "libcxi.so.1").write_text("GROUP ( libcxi.so.1.5.0 )")
    with pytest.raises(
        host_network.Refusal, match=r"libcxi\.so\.1: not a 64-bit shared library\. Correct PYTORCH_HOST_"
    ):
        choose(host_network, [str(tmp_path)], IMAGE)
    with pytest.raises(host_network.Refusal, match="the image has no glibc"):
        choose(host_network, [], {**IMAGE, "glibc": None})
    with pytest.raises(host_network.Refusal, match=r"no such file on this host: /nowhere/lib\*\.so\."):
        choose(host_network, ["/nowhere/lib*.so"], IMAGE)


def test_without_readelf_the_sentence_names_the_package_that_has_it(host_network, build, monkeypatch):
    library = str(build("libcxi.so.1"))
    monkeypatch.setenv("PATH", "/nowhere")
    (line,) = host_network.lines_of("1", [library], IMAGE)
    assert line.startswith("nothing is bound: readelf not found") and "Install binutils" in line


@pytest.mark.parametrize("mode", ["1", "replace"])
def test_a_libfabric_of_the_image_is_named_with_the_value_that_replaces_it(host_network, build, mode):
    fabric = build("libfabric.so.1")
    image = {**IMAGE, "libraries": {**IMAGE["libraries"], "libfabric.so.1": "/opt/amazon/efa/lib/libfabric.so.1"}}
    expected = {
        "1": "the image's own are used: /opt/amazon/efa/lib/libfabric.so.1. To bind the host's, export "
        "PYTORCH_HOST_NETWORK=replace",
        "replace": str(fabric),
    }
    assert host_network.lines_of(mode, [str(fabric)], image) == [expected[mode]]


@pytest.mark.parametrize("named_by", ["profile", "installer"])
def test_the_list_has_what_the_profile_or_the_installer_names(
    host_network, build, prefix, tmp_path, named_by, monkeypatch
):
    library, other = build("libcxi.so.1"), build("libother.so.1")
    (tmp_path / "libraries.json").write_text(json.dumps(IMAGE))
    profile = tmp_path / "profile"
    profile.write_text(f'policy PYTORCH_HOST_NETWORK_FILES "{library}  /nowhere/lib*.so"\n')
    if named_by == "installer":
        monkeypatch.setenv("PYTORCH_HOST_NETWORK_FILES", str(other))
    host_network.write_host_network(str(tmp_path), str(profile))
    refused = "nothing is bound: no such file on this host: /nowhere/lib*.so. Correct PYTORCH_HOST_NETWORK_FILES"
    assert (tmp_path / "host-network").read_text().splitlines() == {
        "profile": [f"{library} /nowhere/lib*.so", f"1 {refused}", f"replace {refused}"],
        "installer": [str(other), f"1 {other}", f"replace {other}"],
    }[named_by]
