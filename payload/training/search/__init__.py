"""The hyper-parameter search: its space, the study in its directory, its trials and its picture."""
