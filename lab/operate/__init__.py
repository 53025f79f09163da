"""What operating the product is like for a person, measured."""
