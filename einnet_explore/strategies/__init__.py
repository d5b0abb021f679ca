"""Search strategies over derivation rules: explorative and converging derivation, closure, moves (EinNet §6)."""
