"""Programs of all sizes: integers that are polynomials of parameters, and steps proved for every value of these."""
