"""Checks: facts in, findings out; pure functions, one family a file."""
