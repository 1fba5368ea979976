"""Writes recipes and locks of a new PyTorch release: tools/new-release."""
