"""Arithmetic only: arrays in, arrays out. No validation, no state, no input or output.

Kernels release the GIL and start no threads; threads are only started in `parallel`.
"""
