"""Programs that type checkers read and nobody runs: what they must accept and infer, and what they must refuse."""
