"""Rows × atoms: nearest atoms, codes and scores, the same bits for any batch and thread count."""
