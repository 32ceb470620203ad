"""The recipes' models, written out here; one module for each family. All are built for a number of outputs."""
