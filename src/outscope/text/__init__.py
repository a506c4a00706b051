"""Texts in, decisions out: encoders, fine-tuning, and a detector that reads.

Nothing here imports torch before a network is really needed.
"""
