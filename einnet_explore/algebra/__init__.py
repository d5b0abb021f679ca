"""What can be known about an expression without changing its meaning: values, keys, supports, proofs."""
