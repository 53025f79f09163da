"""What is kept of a rollback: the report, its evidence, checklist and messages, and who keeps them."""
