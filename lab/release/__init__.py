"""What others install: images, chart, SBOMs, provenance, checksums and signatures, made and verified offline.

Imports lab.images and lab.setup; only lab.suite imports this package.
"""
