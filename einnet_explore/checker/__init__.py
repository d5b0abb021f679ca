"""Replay of the certificates of a record, without rules or search."""

from einnet_explore.checker.record import FORMAT, RULE_NAMES, VERSION, RecordError, load_json, read_record
from einnet_explore.checker.replay import Report, StepReport, check_file, check_record, require_instance

__all__ = [
    "FORMAT",
    "RULE_NAMES",
    "VERSION",
    "RecordError",
    "Report",
    "StepReport",
    "check_file",
    "check_record",
    "load_json",
    "read_record",
    "require_instance",
]
