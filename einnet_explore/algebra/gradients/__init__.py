"""The parts of reverse-mode differentiation: scalars, pre-images, adjoints, linearity."""
