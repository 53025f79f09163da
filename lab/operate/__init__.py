"""What people operate with, tried against real servers: messages on their way out."""
