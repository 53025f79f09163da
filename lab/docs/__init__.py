"""The pages: the hook that makes a site of them, and the list of the commands that they show."""
