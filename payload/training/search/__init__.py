"""The parts of search.py: the space, the study in its directory, a trial, and the picture."""
