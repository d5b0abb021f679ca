"""What can be known about an expression without changing its meaning: values, keys, supports, proofs.

The parts of reverse-mode differentiation: scalars, pre-images, adjoints, linearity.
"""
