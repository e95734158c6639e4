"""Programs for type checkers, never run: code that they must accept, types that they must infer, errors to report."""
