"""Public data, read in the layouts their users know; one module for each."""
