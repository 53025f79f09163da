"""What tests of several levels share: bodies, corpora and clients. Test modules import from here, never from each other."""
