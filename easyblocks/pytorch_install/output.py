##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
What commands say when they fail.
"""


def last_line(output):
    """The last line of a command's output, where errors say what they are."""
    return (output.strip().splitlines() or ['no output'])[-1]
