"""One module for each subject; each check is a function of `Context` that returns a Finding."""
