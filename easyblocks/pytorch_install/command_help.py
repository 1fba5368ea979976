##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
What `--help` of a command says, as a manual page and as words that a shell completes.
"""
import os
import re
import subprocess
import sys
from functools import lru_cache
from typing import Dict, List

from easybuild.tools.build_log import print_warning
from easybuild.tools.filetools import write_file

from pytorch_install.tree import RUNSCRIPTS, RUNSCRIPTS_ON_HOST, TREE

# Directory of an installation for MANPATH.
MANUALS = os.path.join('share', 'man')

# Seconds that a command has to print its help.
LIMIT = 60

# The line of an option or a variable: its name, then its meaning two spaces or more behind it.
TERM = re.compile(r' {0,2}(-\S.*?|[A-Z_]{3}\S*(?:, [A-Z_]{3}\S*)*)(?: {2,}(\S.*))?$')

# Characters that roff changes, the first one first, and what prints them.
SPECIAL = {'\\': '\\e', '-': '\\-', '`': '\\(ga', "'": '\\(aq', '~': '\\(ti'}


@lru_cache(maxsize=None)
def help_texts(commands) -> Dict[str, str]:
    """
    The help of each of this checkout's commands, by name; without those of which it cannot be read, with a warning.

    :param commands: Commands of the runtime
    """
    places = dict.fromkeys(RUNSCRIPTS + RUNSCRIPTS_ON_HOST, 'runscripts')
    places.update(dict.fromkeys(commands.on_host, 'bin'))
    # as wide as the texts that are not wrapped by argparse; Python is this one if the host has no other
    environment = {'COLUMNS': '100', 'PATH': os.pathsep.join([os.defpath, os.path.dirname(sys.executable)])}
    texts = {}
    for name, directory in sorted(places.items()):
        try:
            texts[name] = subprocess.run([os.path.join(TREE, directory, name), '--help'], env=environment, check=True,
                                         stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=LIMIT,
                                         encoding='utf-8').stdout
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            print_warning("no manual page for %s, its --help failed: %s", name, error)
    return texts


def install_manuals(texts, installdir, module):
    """
    Write the manual pages of commands.

    :param texts: help of each command, by name
    :param module: name and version of the module, for the foot of the pages
    """
    for name, text in texts.items():
        write_file(os.path.join(installdir, MANUALS, 'man1', name + '.1'), manual_page(name, text, module))


def manual_page(name, text, module):
    """
    A manual page, by the macros of man(7).

    :param text: the help: a usage line, then paragraphs; indented ones are examples, or options with their meanings
    """
    paragraphs = [part.strip('\n').split('\n') for part in re.split(r'\n\s*\n', text.strip('\n'))]
    synopsis = ' '.join(line.strip() for line in paragraphs.pop(0))
    summary = re.split(r'[.:] |, for example|[.:]$', ' '.join(paragraphs[0]))[0]
    lines = [
        '.TH %s 1 "" "%s"' % (name.upper(), escape(module)),
        '.nh', '.ad l',  # names of variables and options stay whole
        '.SH NAME', '%s \\- %s' % (escape(name), escape(summary[:1].lower() + summary[1:])),
        '.SH SYNOPSIS', escape(re.sub('^usage: ', '', synopsis, flags=re.IGNORECASE)),
        '.SH DESCRIPTION',
    ]
    for paragraph in paragraphs:
        lines += roff(paragraph)
    return '\n'.join(lines) + '\n'


def roff(paragraph) -> List[str]:
    """A paragraph of a help, as lines of man(7)."""
    if paragraph[0].endswith(':') and len(paragraph) > 1:  # the heading of argparse's options
        return ['.SH ' + escape(paragraph[0].rstrip(':').upper()), *roff(paragraph[1:])]
    if all(line.startswith('    ') for line in paragraph):
        return ['.PP', '.RS 4', '.nf', *map(escape, (line[4:] for line in paragraph)), '.fi', '.RE']
    if not TERM.match(paragraph[0]):
        return ['.PP', *(escape(line.strip()) for line in paragraph)]
    lines = []
    for line in paragraph:
        term = TERM.match(line)
        if term:
            lines += ['.TP', '.B ' + escape(term.group(1)), *([escape(term.group(2))] if term.group(2) else [])]
        elif line.startswith(' '):
            lines.append(escape(line.strip()))
        else:
            lines += ['.PP', escape(line)]
    return lines


def escape(text):
    """Text that roff prints as it is, with hyphens that can be searched and copied."""
    for character, written in SPECIAL.items():
        text = text.replace(character, written)
    return '\\&' + text if text.startswith('.') else text


def options(text):
    """The long options in a help, in its order, such as ['--dry-run', '--help']."""
    described = [match.group(1) for match in map(TERM.match, text.split('\n')) if match]
    usage = text.strip().split('\n\n')[0]
    names = re.findall(r'(?<![\w-])--[a-z][a-z-]*', '\n'.join([usage, *described]))
    return list(dict.fromkeys([*names, '--help']))
