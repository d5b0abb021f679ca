"""Evaluation of expressions over number domains: exact integers, a prime field, floats with running error bounds."""
