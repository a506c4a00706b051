"""Scores → cuts, p-values and promises; truth and scores → measures."""
