##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Signatures of images, checked offline against the one key that the recipe names; called by sources.py and registry.py.
"""
import json
import re
import tempfile

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import remove_dir
from easybuild.tools.run import run_shell_cmd
from easybuild.tools.utilities import shell_quote

from pytorch_install.images.imagefile import runtime_command
from pytorch_install.output import last_line

EXTENSIONS = ('.pem', '.asc')


def verify_signature(runtime, image, key):
    """
    Stop unless an image was signed with a key.

    :param runtime: command of the container runtime
    :param image: path of the image
    :param key: path of the public key: PEM, or OpenPGP in its text form (.asc)
    """
    if key.endswith('.pem'):
        result = run_shell_cmd('%s verify --key %s %s' % (runtime, shell_quote(key), shell_quote(image)),
                               fail_on_error=False, hidden=True)
        reason = None if result.exit_code == 0 else last_line(result.output)
    else:
        reason = verify_openpgp(runtime, image, key)
    if reason:
        raise EasyBuildError("%s is not signed with the key that the recipe names, %s (%s); get the image again, or "
                             "ask who provides it for the key", image, key, reason)


def verify_openpgp(runtime, image, key):
    """Verify with a keyring that has this key alone; return what is wrong, or None."""
    keyring = tempfile.mkdtemp(prefix='keys-')
    try:
        command = runtime_command(runtime, KEYSDIR=keyring) + ' '
        result = run_shell_cmd(command + 'key import ' + shell_quote(key), fail_on_error=False, hidden=True)
        ours = [found.lower() for found in re.findall('fingerprint ([0-9A-Fa-f]{40,64}) successfully', result.output)]
        if result.exit_code != 0 or not ours:
            return last_line(result.output)
        result = run_shell_cmd(command + 'verify --local --json ' + shell_quote(image), fail_on_error=False,
                               hidden=True, split_stderr=True)
        if result.exit_code != 0:
            return last_line(result.stderr)
        # the runtime asks the host's own keyring too
        signers = [signer['Signer']['Fingerprint'].lower()
                   for signer in json.loads(result.output).get('SignerKeys') or []]
        if not signers:
            return 'no signature was found'
        foreign = sorted(set(signers) - set(ours))
        return 'signed with ' + ', '.join(foreign) if foreign else None
    finally:
        remove_dir(keyring)
