"""The outputs of a run: a file, tables in the terminal, a page with plots, pictures, a comparison of two runs."""
