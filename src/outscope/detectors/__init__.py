"""Detectors of rows: one contract, and every class that keeps it."""
