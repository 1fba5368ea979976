##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Provenance of an installed image: its source, its packages and its libraries, as files beside it.
"""
import datetime
import json
import os
import uuid
from urllib.parse import quote

from easybuild.tools.build_log import print_msg, print_warning
from easybuild.tools.filetools import mkdir, write_file

from pytorch_install.images.container_runtime import image_python
from pytorch_install.images.image_files import checksum_of, read_note
from pytorch_install.runtime import run_command, run_program

# The file that identifies an installed image.
RECORD = 'image.json'


def write_provenance(spec, image, path, version=('--version',), python=None):
    """
    Write image.json, packages.json, sbom.cdx.json (CycloneDX 1.5) and libraries.json.

    :param spec: the ImageSpec
    :param image: the Image
    :param path: path of the installed image; the files are written to a directory beside it
    :param version: arguments with which the runtime prints its version
    :param python: command of the image's Python, without this user's environment; by default, that of Apptainer
    """
    record = {
        'image': os.path.basename(path),
        'source': image.reference,
        'digest': image.digest,
        'identity': image.identity,
        'sha256': image.checksum or checksum_of(path),
        'size': os.path.getsize(path),
        'installed': datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds'),
        'runtime': run_command([spec.runtime, *version], hidden=True).output.strip(),
        'easyconfig': os.path.basename(spec.easyconfig),
        'signing_key': spec.signing_key,
    }
    python = python or image_python(spec.runtime, path, spec.conda_activation, '--cleanenv')
    inside, libraries = printed(python, 'list_packages.py'), printed(python, 'list_libraries.py')
    directory = directory_of(path)
    mkdir(directory, parents=True)
    for name, content in [(RECORD, record), ('packages.json', inside), ('sbom.cdx.json', sbom(record, inside)),
                          ('libraries.json', libraries)]:
        write_file(os.path.join(directory, name), json.dumps(content, indent=2) + '\n')


def directory_of(path):
    """Directory with the provenance of an installed image."""
    return os.path.join(os.path.dirname(path), 'provenance')


def installed_checksum(spec, image, path):
    """
    SHA-256 of an installed image if it is the recipe's, and undamaged; else None.

    :param image: the recipe's Image
    :param path: path of the installed image, which need not exist
    """
    identity, key, checksum = read_note(os.path.join(directory_of(path), RECORD), 'identity', 'signing_key', 'sha256')
    if not os.path.isfile(path) or (identity, key) != (image.identity, spec.signing_key):
        return None
    if checksum_of(path) != checksum:
        print_warning("%s is damaged: its SHA-256 has changed since its installation. Installing it again", path)
        return None
    print_msg("image %s: the installed one is the same, it is kept" % image.reference)
    return checksum


def printed(python, name):
    """What a program of programs/ prints as JSON with the image's Python, without this user's environment."""
    # without PYTHONPATH and ~/.local
    return json.loads(run_program(python, name, split_stderr=True, hidden=True).output)


def sbom(record, inside):
    """
    A software bill of materials in CycloneDX 1.5, https://cyclonedx.org/docs/1.5/json/.

    :param record: content of image.json
    :param inside: content of packages.json
    """
    components = []
    for kind, packages in inside['packages'].items():
        for package in packages:
            url = package_url(kind, package, inside['distribution'])
            components.append({'type': 'library', 'name': package['name'], 'version': package['version'],
                               'bom-ref': url, 'purl': url})
    return {
        'bomFormat': 'CycloneDX',
        'specVersion': '1.5',
        'serialNumber': uuid.uuid5(uuid.NAMESPACE_OID, record['sha256']).urn,
        'version': 1,
        'metadata': {
            'timestamp': record['installed'],
            'component': {
                'type': 'container', 'bom-ref': 'image', 'name': record['image'], 'version': record['digest'] or '',
                'hashes': [{'alg': 'SHA-256', 'content': record['sha256']}],
            },
        },
        # in the schema, references are unique
        'components': list({component['bom-ref']: component for component in components}.values()),
    }


def package_url(kind, package, distribution):
    """
    The purl of a package, https://github.com/package-url/purl-spec/blob/main/PURL-TYPES.rst.

    :param kind: 'python', 'conda', 'deb' or 'rpm'
    :param distribution: the image's os-release
    """
    name, version = package['name'], quote(package['version'], safe='')
    if kind == 'python':
        return 'pkg:pypi/%s@%s' % (name.lower().replace('_', '-'), version)
    if kind == 'conda':
        return 'pkg:conda/%s@%s?build=%s' % (quote(name, safe=''), version, quote(package['build'] or '', safe=''))
    system = distribution.get('ID', 'linux')
    return 'pkg:%s/%s/%s@%s?arch=%s&distro=%s-%s' % (kind, system, quote(name, safe=''), version,
                                                     package['architecture'], system,
                                                     distribution.get('VERSION_ID', ''))
