"""The recipe of an image, for unit and integration tests, which fill in its lines."""

RECIPE = """easyblock = 'EB_PyTorchContainer'
name = 'PyTorch'
version = '2.13.0'
versionsuffix = '-test'
homepage = 'https://pytorch.org'
description = 'Test.'
toolchain = SYSTEM
{lines}
moduleclass = 'ai'
"""
