"""One module for each subject; each check is a function of `Surroundings` that returns a Finding."""
