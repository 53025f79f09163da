"""Settings, requests, modes, levels and log lines: what needs no torch."""
