"""The documentation site: MkDocs with its Material theme."""
