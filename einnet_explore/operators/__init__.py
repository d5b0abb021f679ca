"""Library operators as values, their iterator mapping tables, and matching (EinNet §5.1)."""
