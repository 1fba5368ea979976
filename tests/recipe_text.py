"""The text of a recipe, for unit and integration tests, which fill in its lines."""

RECIPE = """easyblock = '{easyblock}'
name = '{name}'
version = '{version}'
versionsuffix = '{suffix}'
homepage = 'https://example.org'
description = 'Test.'
toolchain = SYSTEM
{lines}
moduleclass = 'ai'
"""
