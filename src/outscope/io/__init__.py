"""What is read and written: saved models, tables of texts, arrays; whole files or none."""
