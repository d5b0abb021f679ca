"""Post-optimisation (EinNet §6.3): passes over instantiated programs, each step a rule like any other."""
