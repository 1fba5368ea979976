"""Makes a small image, for tests that copy, read and damage whole images: the CPU image with pip alone."""

import shutil
import subprocess

from testbed import recipes
from testbed.progress import run
from testbed.stand_ins.systems import IN_IMAGE

#: Compilers, headers, Perl, Git, SSH, documents, translations: two thirds of the system of the CPU image, and nothing
#: that starts ranks.
NOT_FOR_RANKS = (
    "./usr/include/*",
    "./usr/lib/gcc/*",
    "./usr/lib/*/gconv/*",
    "./usr/lib/*/perl*/*",
    "./usr/lib/*/lib*san.so*",
    *(f"./usr/lib/*/lib{name}*" for name in ("bfd", "gprofng", "isl", "opcodes", "perl")),
    "./usr/lib/git-core/*",
    "./usr/share/[!p]*",  # Debian has wheels in python-wheels
    "./usr/share/perl*",
    *(f"./usr/bin/{name}*" for name in ("git", "perl", "scalar", "ssh", "x86_64-linux-gnu-", "aarch64-linux-gnu-")),
    "./usr/local/bin/py-spy",
    "*.a",
)
#: All packages but pip: without it, every installation would make it for the users' environment.
PACKAGES = [f".{IN_IMAGE}/{name}" for name in ("[!p]*", "p[!i]*", "pi[!p]*")]
#: What a runtime mounts over an image.
MOUNTED = ("./proc/*", "./sys/*", "./dev/*", "./tmp/*", "./var/tmp/*", "./root/*", "./home/*")


def provide(layout):
    """Make the image, once for a testbed; return its path. The packages of the venv module are bound at IN_IMAGE."""
    source = layout.easybuild / "software" / recipes.module(recipes.CONTAINER) / f"{recipes.CONTAINER}.sif"
    image = layout.root / "small-image" / "small.sif"
    with layout.locked("small-image"):
        if not image.exists() or image.stat().st_mtime < source.stat().st_mtime:
            make(layout.bin / "apptainer", source, image)
    return image


def make(apptainer, source, image):
    """Write `image`: the files of `source` that start ranks, without those of its packages."""
    shutil.rmtree(image.parent, ignore_errors=True)
    root, new = image.parent / "root", image.with_suffix(".new")
    root.mkdir(parents=True)
    archive = image.with_suffix(".tar")
    write_files(apptainer, source, archive, without=PACKAGES)
    run(["tar", "--extract", "--no-same-owner", "--file", archive, "--directory", root])
    archive.unlink()
    run([apptainer, "--silent", "build", "--mksquashfs-args=-comp lz4 -no-fragments", new, root])
    shutil.rmtree(root)
    new.rename(image)


def write_files(apptainer, source, archive, *, without):
    """Write the files of an image that start ranks, except some paths, into a tar file."""
    excluded = [f"--exclude={name}" for name in (*MOUNTED, *NOT_FOR_RANKS, *without)]
    enter = [apptainer, "exec", "--cleanenv", "--contain", source]
    with archive.open("wb") as file:
        subprocess.run([*enter, "tar", "--create", "--directory=/", *excluded, "."], stdout=file, check=True)
