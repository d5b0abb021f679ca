"""Trust by the thousand: ``python -m benchmarks.soak expressions|graphs|conformance|kills``.

``--count N`` items (or ``--seconds T``) from ``--seed S``, each by its own number: ``--only NUMBER`` runs one again.
What is done is kept in ``--state DIR`` (one line of JSON an item), so an interrupted run goes on where it was.  Each
finding is printed with the command that reproduces it, and the true counts come at the end.
"""
