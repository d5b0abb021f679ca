"""Long random tests: ``python -m benchmarks.soak expressions|graphs|conformance|kills|optimisers|verdicts``.

The items come from ``--seed S``; ``--count N`` or ``--seconds T`` limits them, and ``--only NUMBER`` repeats one.
``--state DIR`` stores finished items (one line of JSON each), so an interrupted run resumes.  Each finding is printed
with the command that reproduces it; the counts follow at the end.
"""
