"""Facts about rows, a plan, and one dictionary learned as planned."""
