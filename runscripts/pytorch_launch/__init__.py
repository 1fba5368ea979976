"""What one rank needs to know before Python starts; run by the scripts of `runscripts/`.

Every rank of a job pays for these modules at start-up, so they import as little as they can:
no `re`, `argparse`, `pathlib` or `socket`, each of which costs more than all of them together.
"""


class LaunchError(Exception):
    """A mistake the user can correct: one line that says what, where, and what to try.

    `status` is the exit status of the command that meets it.
    """

    status = 2


#: Slurm's numbers have 64 bits, and Python refuses to read one of thousands of digits.
MOST_DIGITS = 18


def is_number(text):
    """Whether `text` is a number from 0 that fits into 64 bits."""
    return text.isdecimal() and len(text) <= MOST_DIGITS
