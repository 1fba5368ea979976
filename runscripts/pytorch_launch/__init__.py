"""What one rank needs to know before Python starts; run by the scripts of `runscripts/`.

Every rank of a job pays for these modules at start-up, so they import as little as they can:
no `re`, `argparse`, `pathlib` or `socket`, each of which costs more than all of them together.
"""


class LaunchError(Exception):
    """A mistake the user can correct: one line that says what, where, and what to try.

    `status` is the exit status of the command that meets it.
    """

    status = 2
