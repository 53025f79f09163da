"""Commands that ``precision-trainer`` has where these tools are installed."""
