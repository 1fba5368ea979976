##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Statements that EasyBuild's module generators lack, in Lua and Tcl, and the values that no statement can hold.
"""
import os
import re

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import read_file

# What has a meaning between quotation marks; in Tcl, braces around the whole are counted too.
SPECIAL = {'Lua': r'[\\"]', 'Tcl': r'[\\"$\[\]{}]'}

# Parameters that the module sets variables to or compares with.
VALUES = ['binds', 'central_images', 'cluster', 'commands', 'conda_activation', 'conflicts', 'gpu', 'image',
          'shifter_modules']

# Characters that separate binds, or that are in no module's name; and those that Lmod evaluates a second time when it
# translates Tcl (tcl2lua.tcl of 8.6: output-path-foo, conflict).
REFUSED = {'binds': ',"\\', 'conflicts': ' "\'$[]{}();\\`&|<>#%,', 'cluster': ' "\'$[]{}();\\`&|<>#%,'}

# Parameters that EasyBuild writes into the module's help, in brackets or braces, and what ends these.
TEXTS = ['citing', 'description', 'docpaths', 'docurls', 'examples', 'homepage', 'site_contacts', 'upstream_contacts',
         'usage', 'whatis']
UNWRITABLE = {'Lua': ['[==[', ']==]'], 'Tcl': ['\\']}

def conflicts(generator, names):
    """Statements that refuse to load the module beside others."""
    statement = {'Lua': 'conflict(%s)\n', 'Tcl': 'conflict %s\n'}[generator.SYNTAX]
    return ''.join(statement % quoted(generator, name) for name in names)


def pushenv(generator, variable, value):
    """A statement that sets a variable to this very text; EasyBuild's own is for values without special characters."""
    statement = {'Lua': 'pushenv("%s", %s)\n', 'Tcl': 'pushenv %s %s\n'}[generator.SYNTAX]
    return statement % (variable, quoted(generator, value))


def template(generator, name, lists=None, **values):
    """A file from beside this one in the generator's syntax, with texts and lists of texts filled in; '' without it."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + '.' + generator.SYNTAX.lower())
    if not os.path.exists(path):
        return ''
    separator = {'Lua': ', ', 'Tcl': ' '}[generator.SYNTAX]
    # texts stand between quotation marks, some with other words
    values = {key: quoted(generator, value)[1:-1] for key, value in values.items()}
    for key, texts in (lists or {}).items():
        values[key] = separator.join(quoted(generator, text) for text in texts)
    return read_file(path) % values


def quoted(generator, text):
    """A text without control characters between quotation marks, so that the module has it as it is."""
    return '"%s"' % re.sub(SPECIAL[generator.SYNTAX], r'\\\g<0>', text)


def check_values(recipe, sources, syntax):
    """
    Stop before the long steps where a recipe has what no module can hold, whatever its quotation marks.

    :param recipe: parameters of the easyconfig
    :param sources: names of its sources
    :param syntax: 'Lua' or 'Tcl'
    """
    parameters = {name: recipe[name] for name in VALUES + TEXTS if name in recipe}
    for name, value in {**parameters, 'sources': sources}.items():
        for text in [value] if isinstance(value, str) else value or []:
            wrong = unwritable_part(name, text, syntax)
            if wrong:
                raise EasyBuildError("%s: a module in %s syntax cannot hold %r of '%s': %r. Remove it%s.",
                                     os.path.basename(recipe.path), syntax, wrong, name, text,
                                     ', or write two binds' if wrong == ',' else '')


def unwritable_part(parameter, text, syntax):
    """What a module cannot hold of a parameter's text, or None."""
    if parameter in TEXTS:
        return next((part for part in UNWRITABLE[syntax] if part in text), None)
    refused = REFUSED.get(parameter, '')
    return next((part for part in text if not part.isprintable() or part in refused), None)
