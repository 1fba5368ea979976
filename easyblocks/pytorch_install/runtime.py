##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Which commands an image has; called by the easyblocks, as the module's bin/ offers some of them on the host.
"""
import re

from easybuild.tools.run import run_shell_cmd
from easybuild.tools.utilities import shell_quote


def absent_commands(enter, names):
    """Those of the commands `names` that are not found after `enter`, a command that enters an image."""
    script = 'for name; do type "$name" >/dev/null 2>&1 || echo "absent: $name"; done'
    command = ' '.join([enter, 'sh -c', shell_quote(script), 'sh', *map(shell_quote, names)])
    result = run_shell_cmd(command, hidden=True)
    return [name for name in names if 'absent: ' + name in result.output.splitlines()]


def versioned_commands(python, names):
    """Python and pip with their version, as python3.11, if they are among `names`: the host may have others."""
    code = 'import sys; print("version: %d.%d" % sys.version_info[:2])'  # shell_quote spoils single quotes
    result = run_shell_cmd('%s -c %s' % (python, shell_quote(code)), hidden=True)
    found = re.search(r'^version: (.*)', result.output, re.MULTILINE)  # None in a dry run, which runs nothing
    return [name + found.group(1) for name in ('python', 'pip') if name in names and found]
