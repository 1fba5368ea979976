"""Writes recipes and locks of a new PyTorch release: ./new-release."""
