"""Windows in which a mild breach is mitigated before it is rolled back."""
