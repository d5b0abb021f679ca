"""Models and cases measured against other engines."""
