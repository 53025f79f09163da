"""What tests of several modules share. It may import the packages under test and `lab`, never a test module."""
