##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Signatures of images, verified offline with the key that the recipe names.
"""
import json
import re
import tempfile

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import remove_dir

from pytorch_install.images.container_runtime import runtime_variables
from pytorch_install.runtime import last_line, run_command

EXTENSIONS = ('.pem', '.asc')


def verify_signature(runtime, image, key):
    """
    Stop unless an image was signed with a key.

    :param runtime: command of the container runtime
    :param image: path of the image
    :param key: path of the public key: PEM, or OpenPGP in its text form (.asc)
    """
    if key.endswith('.pem'):
        result = run_command([runtime, 'verify', '--key', key, image], fail_on_error=False, hidden=True)
        reason = None if result.exit_code == 0 else last_line(result.output)
    else:
        reason = verify_openpgp(runtime, image, key)
    if reason:
        raise EasyBuildError("%s is not signed with the recipe's key %s (%s). Download the image again, or "
                             "ask its provider for the key", image, key, reason)


def verify_openpgp(runtime, image, key):
    """Verify with a keyring that has only this key; return the fault, or None."""
    keyring = tempfile.mkdtemp(prefix='keys-')
    try:
        variables = runtime_variables(KEYSDIR=keyring)
        result = run_command([runtime, 'key', 'import', key], variables, fail_on_error=False, hidden=True)
        ours = [found.lower() for found in re.findall('fingerprint ([0-9A-Fa-f]{40,64}) successfully', result.output)]
        if result.exit_code != 0 or not ours:
            return last_line(result.output)
        result = run_command([runtime, 'verify', '--local', '--json', image], variables, fail_on_error=False,
                             hidden=True, split_stderr=True)
        if result.exit_code != 0:
            return last_line(result.stderr)
        # the runtime also uses the host's keyring
        signers = [signer['Signer']['Fingerprint'].lower()
                   for signer in json.loads(result.output).get('SignerKeys') or []]
        if not signers:
            return 'no signature was found'
        foreign = sorted(set(signers) - set(ours))
        return 'signed with ' + ', '.join(foreign) if foreign else None
    finally:
        remove_dir(keyring)
