"""What is said of a rollback: recordings, the incident's report, messages. Pure but for the channels."""
