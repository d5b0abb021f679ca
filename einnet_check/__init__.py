"""A checker of derivations for which neither rules nor search have to be trusted: islpy and the standard library only.

``text`` reads programs, ``terms`` says what a scope computes, ``compare`` proves scopes and programs equal, ``legal``
looks at reads, views and calls, ``record`` goes through a record.  ``python -m einnet_check RECORD.json PROGRAM.ein``.
"""

from einnet_check.record import Verdict, certificate, check

__all__ = ["Verdict", "certificate", "check"]
