"""Environments as a shell prints them."""


def variables(text):
    """The variables of `text`, words of the form NAME=value."""
    return dict(word.split("=", 1) for word in text.split())
