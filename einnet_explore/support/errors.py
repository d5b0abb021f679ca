"""Exceptions that several packages raise and catch."""

from __future__ import annotations


class Refused(ValueError):
    """A rule, an analysis, a kernel or an export does not apply; the message gives the condition and its numbers."""


class RuleError(ValueError):
    """A rule that is not the library's fails, or makes no program; the message names the rule and the place."""


class BackendError(RuntimeError):
    """An equation could not be compiled or run; the message names the equation and the cause."""


class NoKernel(BackendError):
    """A generator has no kernel for an equation; another version of the generator may have one."""
