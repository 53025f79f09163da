"""What others install: images, chart, SBOMs, provenance, checksums and signatures, made and verified offline.

Imports lab.images and lab.setup; nothing imports this package.
"""
