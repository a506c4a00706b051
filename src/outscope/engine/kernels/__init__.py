"""Arithmetic only: arrays in, arrays out. No validation, no state, no input or output.

Kernels release the GIL and start no threads; `parallel` is the one place where threads start.
"""
