##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Where images come from, one class for each kind of source; called by pytorchcontainer.py.
"""
import os

from easybuild.tools.build_log import EasyBuildError, print_warning
from easybuild.tools.filetools import read_file, write_file
from easybuild.tools.run import run_shell_cmd
from easybuild.tools.utilities import shell_quote

from pytorch_install.images.cotainr import Cotainr
from pytorch_install.images.debian import make_base
from pytorch_install.images.imagefile import (
    ImageSource,
    check_structure,
    checksum_of,
    images_directory,
    require_checksum,
    runtime_command,
)
from pytorch_install.images.registry import TRANSPORTS, RegistryImage
from pytorch_install.images.signature import EXTENSIONS, verify_signature
from pytorch_install.output import last_line
from pytorch_install.sources.directories import make_directory, protect, require_trust, source_directories


class SifSource(ImageSource):
    """An image that is an EasyBuild source, a file that ends in .sif; it keeps its name, as the site's copies do."""

    @property
    def name(self):
        """The source's own name."""
        return next(name for name in self.block.source_names() if name.endswith('.sif'))

    @property
    def file(self):
        """The source itself, wherever EasyBuild or the site has it."""
        return self.block.source_with_extension('.sif')

    @property
    def identity(self):
        """The file's content, wherever it was found."""
        return 'sha256:' + self.checksum

    def fetch(self):
        """Take the checksum that EasyBuild computed and compared, and look closer."""
        self.checksum = next(source['sha256'] for source in self.block.src if source['name'] == self.name)
        self.inspect()

    def inspect(self):
        """Check what a wrong checksum in a recipe would not show: the file's form and its signature."""
        check_structure(self.file)
        if self.block.signing_key:
            self.block.require_runtime()
            verify_signature(self.block.runtime, self.file, self.block.signing_key)


class SiteFile(SifSource):
    """An image that the site provides under the file name that `image` gives."""

    def __init__(self, block):
        super().__init__(block)
        self.reference = block.cfg['image']
        self.found = None

    @property
    def name(self):
        """The name that the site gave it."""
        return self.reference

    @property
    def file(self):
        """The site's file, which nothing is copied from until it is installed."""
        return self.found

    def fetch(self):
        """Find the file, and compare it with the recipe's checksum, or with what it was at the first installation."""
        self.found = self.block.find_image(self.name)
        self.checksum = checksum_of(self.found)
        expected = self.block.cfg['image_checksum']
        if expected:
            require_checksum(self.found, self.checksum, expected)
            self.inspect()
        else:
            self.inspect()
            self.compare_with_record()

    @property
    def record(self):
        """Path of the note, in sha256sum's form, that the first installation leaves on the source path."""
        records = [os.path.join(directory, self.name + '.sha256')
                   for directory in [*source_directories(self.block.name, 'images'), images_directory(self.block)]]
        return next(filter(os.path.isfile, records), records[-1])

    def compare_with_record(self):
        """Compare with the checksum that the first installation noted, if there was one."""
        require_trust(self.record, os.path.dirname(self.record))
        noted = read_file(self.record).split() if os.path.isfile(self.record) else []
        before = noted[0] if noted else self.checksum
        if before != self.checksum:
            raise EasyBuildError("%s is not the image that was installed before: its SHA-256 is %s, noted in %s is %s; "
                                 "get the former image again, or accept this one with image_checksum = '%s' in the "
                                 "recipe", self.found, self.checksum, self.record, before, self.checksum)

    def build(self):
        """Start it, as only the runtime notices damage of an image whose checksum nobody gave."""
        result = run_shell_cmd('%s exec %s true' % (self.block.runtime, shell_quote(self.found)),
                               fail_on_error=False, hidden=True)
        if result.exit_code != 0:
            raise EasyBuildError("%s does not start: %s; get it again", self.found, last_line(result.output))

    def installed(self):
        """Note the checksum if nobody knew it before; with --module-only it is not known now either."""
        if self.block.cfg['image_checksum'] or not self.checksum or os.path.isfile(self.record):
            return
        try:
            make_directory(os.path.dirname(self.record))
            write_file(self.record, '%s  %s\n' % (self.checksum, self.name))
            protect(self.record)
        except (EasyBuildError, OSError) as error:
            print_warning("the checksum of %s could not be noted, so another image of this name will not be noticed; "
                          "image_checksum = '%s' in the recipe tells it too (%s)", self.found, self.checksum, error)


class Definition(ImageSource):
    """A definition file, a source that ends in .def, which `apptainer build` makes an image of."""

    def build(self):
        """Build, on a base made here if the recipe wants one, with the locked wheels in reach."""
        block = self.block
        options = ['--fakeroot']
        if block.cfg['debian_release']:
            base = make_base(block.cfg['debian_release'], block.cfg['debian_packages'], block.builddir)
            options.extend(['--build-arg', 'BASE=' + shell_quote(base)])
        if block.lock:
            # two empty directories that every Linux image has
            options.extend(['--build-arg', 'REQUIREMENTS=' + shell_quote(os.path.basename(block.lock)),
                            '--bind', shell_quote('%s:/mnt,%s:/media'
                                                  % (block.wheels, os.path.dirname(block.requirements)))])
        command = '%s build %s %s %s' % (block.runtime, ' '.join(options),
                                         shell_quote(os.path.join(block.builddir, self.name)),
                                         shell_quote(block.source_with_extension('.def')))
        run_shell_cmd(runtime_command(command, MKSQUASHFS_ARGS=block.cfg['mksquashfs_args']), work_dir=block.builddir)


# Kinds of images by the ending of the source that they are made from.
BY_EXTENSION = {'.sif': SifSource, '.def': Definition, '.yml': Cotainr}


def image_source(block):
    """The one image source that the recipe of an easyblock names."""
    given = {extension: kind for extension, kind in BY_EXTENSION.items()
             if any(name.endswith(extension) for name in block.source_names())}
    image = block.cfg['image']
    if image:
        given[image] = kind_of(image)
    if len(given) != 1:
        raise EasyBuildError("%s must name one image source, 'image' or a .sif, .def or .yml file in 'sources'; "
                             "found: %s", block.cfg.path, ', '.join(given) or 'none')
    kind = next(iter(given.values()))
    check_signing_key(block, built_here=kind in (Definition, Cotainr) or (image or '').startswith('docker://'))
    return kind(block)


def check_signing_key(block, built_here):
    """Stop if the recipe asks for a signature that nobody could check."""
    key = block.cfg['signing_key']
    if key and built_here:
        raise EasyBuildError("%s names a 'signing_key', and an image that is built here has no signature: leave it out",
                             block.cfg.path)
    if key and not (key in block.source_names() and key.endswith(EXTENSIONS)):
        raise EasyBuildError("signing_key = '%s' in %s must be one of 'sources', with a checksum, and end in %s",
                             key, block.cfg.path, ' or '.join(EXTENSIONS))


def kind_of(image):
    """The class for a value of the parameter `image`."""
    if image.partition('://')[0] in TRANSPORTS and '://' in image:
        return RegistryImage
    if image.endswith('.sif') and os.path.basename(image) == image:
        return SiteFile
    raise EasyBuildError("image = '%s' is neither a reference (docker://, oras://, library://) nor a file name that "
                         "ends in .sif; the directory of a file belongs to 'central_images'", image)
