"""A package of one module, which a test installs as a user would and removes again."""

WORD = "installed by a user"
