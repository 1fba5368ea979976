"""The documentation site: MkDocs with its Material theme, and the pictures of the pages."""
