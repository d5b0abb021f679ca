"""Standalone checker of derivations, independent of rules and search: islpy and the standard library only.

``text`` parses programs, ``terms`` computes the terms of a scope, ``compare`` proves scopes and programs equal,
``legal`` checks reads, views and calls, ``ranges`` checks types and the ranges of integers, ``sizes`` has integers that
depend on parameters (``param h >= 3``), ``record`` checks a record.
``python -m einnet_check RECORD.json PROGRAM.ein``.
"""

from einnet_check.record import Verdict, certificate, check

__all__ = ["Verdict", "certificate", "check"]
