"""What a person meets first (pages, chart, plugin), tried as that person would, on a real cluster."""
