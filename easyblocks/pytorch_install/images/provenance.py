##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Where an installed image came from, and what is in it, as files beside it; called by pytorchcontainer.py.
"""
import datetime
import json
import os
import uuid
from urllib.parse import quote

from easybuild.tools.filetools import mkdir, read_file, write_file
from easybuild.tools.run import run_shell_cmd
from easybuild.tools.utilities import shell_quote

from pytorch_install.images.imagefile import activated, checksum_of

INSIDE = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), 'programs',
                      'list_packages.py')


def write_provenance(block, image, directory):
    """
    Write image.json, packages.json and sbom.cdx.json (CycloneDX 1.5).

    :param block: the easyblock that installed the image
    :param image: path of the installed image
    :param directory: where the files go
    """
    if block.dry_run:
        return
    source = block.image
    record = {
        'image': os.path.basename(image),
        'source': source.reference,
        'digest': source.digest,
        'identity': source.identity,
        'sha256': source.checksum or checksum_of(image),
        'size': os.path.getsize(image),
        'installed': datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds'),
        'runtime': run_shell_cmd(block.runtime + ' --version', hidden=True).output.strip(),
        'easyconfig': os.path.basename(block.cfg.path),
        'signing_key': block.cfg['signing_key'],
    }
    inside = packages_inside(block, image)
    mkdir(directory, parents=True)
    for name, content in [('image.json', record), ('packages.json', inside), ('sbom.cdx.json', sbom(record, inside))]:
        write_file(os.path.join(directory, name), json.dumps(content, indent=2) + '\n')


def packages_inside(block, image):
    """Ask the image's own Python, with nothing of this user's environment, for what is installed."""
    # -I: neither PYTHONPATH nor ~/.local
    command = '%s exec --cleanenv %s bash -c %s' % (block.runtime, shell_quote(image),
                                                    activated(block, 'python3 -I -'))
    result = run_shell_cmd(command, stdin=read_file(INSIDE), split_stderr=True, hidden=True)
    return json.loads(result.output)


def sbom(record, inside):
    """
    A software bill of materials in CycloneDX 1.5, https://cyclonedx.org/docs/1.5/json/.

    :param record: what is in image.json
    :param inside: what is in packages.json
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
        # the schema wants every reference once
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
