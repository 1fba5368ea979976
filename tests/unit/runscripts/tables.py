"""Tables of values, as a page has them."""


def table(text):
    """The rows of a table with `|` between its columns, each a dictionary by the names in its first line."""
    lines = [
        [cell.strip() for cell in line.split("|")]
        for line in text.strip().splitlines()
        if "|" in line and not line.startswith("#")
    ]
    return [dict(zip(lines[0], line)) for line in lines[1:]]


def name(row):
    """The name of a test by its row."""
    return " ".join(filter(None, row.values()))
