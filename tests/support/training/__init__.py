"""Helpers of the trainer's tests: process groups, sessions, checkpoints, and functions that run on every rank."""
