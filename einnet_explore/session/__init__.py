"""The interactive session: the derivation tree, records, scripts, saved searches, runs."""
