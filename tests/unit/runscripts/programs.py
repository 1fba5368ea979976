"""Scripts that stand for programs."""


def program(path, text, shell="/bin/sh"):
    """Write an executable script; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{shell}\n{text}\n")
    path.chmod(0o755)
    return path
