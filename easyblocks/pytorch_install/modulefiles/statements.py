# SPDX-License-Identifier: GPL-2.0-only
"""
Module statements that EasyBuild's generators lack, in Lua and Tcl, and checks of their values.
"""
import os
import re

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import read_file

# Characters with a meaning in quotation marks; Tcl also counts braces of the block around them.
SPECIAL = {'Lua': r'[\\"]', 'Tcl': r'[\\"$\[\]{}]'}

# Parameters whose values are in module statements.
VALUES = ['binds', 'central_images', 'cluster', 'commands', 'conda_activation', 'conflicts', 'gpu', 'image',
          'podman_options', 'shifter_modules']

# Characters that separate binds, that no module's name has, or that Lmod evaluates again when it translates Tcl
# (tcl2lua.tcl of 8.6: output-path-foo, conflict).
REFUSED = {'binds': ',"\\', 'conflicts': ' "\'$[]{}();\\`&|<>#%,', 'cluster': ' "\'$[]{}();\\`&|<>#%,'}

# Parameters that EasyBuild writes into the module's help, in brackets or braces, and the text that ends these.
TEXTS = ['citing', 'description', 'docpaths', 'docurls', 'examples', 'homepage', 'site_contacts', 'upstream_contacts',
         'usage', 'whatis']
UNWRITABLE = {'Lua': ['[==[', ']==]'], 'Tcl': ['\\']}

def conflicts(generator, names):
    """Statements that prevent loading the module together with others."""
    statement = {'Lua': 'conflict(%s)\n', 'Tcl': 'conflict %s\n'}[generator.SYNTAX]
    return ''.join(statement % quoted(generator, name) for name in names)


def pushenv(generator, variables):
    """Statements that set variables to any texts; EasyBuild's own do not escape special characters."""
    statement = {'Lua': 'pushenv("%s", %s)\n', 'Tcl': 'pushenv %s %s\n'}[generator.SYNTAX]
    return ''.join(statement % (variable, quoted(generator, value)) for variable, value in variables.items())


def template(generator, name, lists=None, **values):
    """The template `name` in the generator's syntax, with texts and lists of texts filled in; '' if there is none."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + '.' + generator.SYNTAX.lower())
    if not os.path.exists(path):
        return ''
    separator = {'Lua': ', ', 'Tcl': ' '}[generator.SYNTAX]
    # a template has texts in quotation marks, some together with other words
    values = {key: quoted(generator, value)[1:-1] for key, value in values.items()}
    for key, texts in (lists or {}).items():
        values[key] = separator.join(quoted(generator, text) for text in texts)
    return read_file(path) % values


def quoted(generator, text):
    """A text without control characters as a quoted string."""
    return '"%s"' % re.sub(SPECIAL[generator.SYNTAX], r'\\\g<0>', text)


def check_values(recipe, sources, syntax):
    """Stop if a recipe, or the names of its sources, have text that cannot be quoted in a module ('Lua' or 'Tcl')."""
    parameters = {name: recipe[name] for name in VALUES + TEXTS if name in recipe}
    for name, value in {**parameters, 'sources': sources}.items():
        for text in [value] if isinstance(value, str) else value or []:
            wrong = unwritable_part(name, text, syntax)
            if wrong:
                raise EasyBuildError("%s: a module in %s syntax cannot hold %r of '%s': %r. Remove it%s.",
                                     os.path.basename(recipe.path), syntax, wrong, name, text,
                                     ', or write two binds' if wrong == ',' else '')


def unwritable_part(parameter, text, syntax):
    """The part of a parameter's text that a module cannot hold, or None."""
    if parameter in TEXTS:
        return next((part for part in UNWRITABLE[syntax] if part in text), None)
    refused = REFUSED.get(parameter, '')
    return next((part for part in text if not part.isprintable() or part in refused), None)
