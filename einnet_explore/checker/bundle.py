"""Bundles as folders of files: the manifest, and the files as their hashes in it say.

The manifest itself has no hash: the check finds damage and mixed-up files, not forgery.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from einnet_explore.checker.record import RecordError, load_json, require_field, require_object

FORMAT, VERSION = "einnet-explore bundle", 2
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file of a bundle, and what is *wrong* with it (None: nothing); *is_record* if it has a certificate."""

    path: str
    wrong: str | None
    is_record: bool

    def __str__(self) -> str:
        return f"{self.path}: {self.wrong or 'as in the manifest'}"

    def to_json(self) -> dict[str, Any]:
        """Return one of the ``files`` of ``check --json``."""
        return {"file": self.path, "ok": self.wrong is None, "why": self.wrong or ""}


def check_files(folder: str) -> tuple[FileReport, ...]:
    """Compare the files of the bundle in *folder* with the hashes in its manifest, in the manifest's order.

    Raises RecordError if there is no manifest, or if it is malformed or of another version.
    """
    source = str(Path(folder) / MANIFEST)
    if not Path(source).is_file():
        raise RecordError(f"{folder}: found a folder without {MANIFEST}, expected a bundle or a record")
    manifest = require_object(load_json(source), source, "$")
    for key, expected in (("format", FORMAT), ("version", VERSION)):
        if (found := require_field(manifest, key, type(expected), source, "$")) != expected:
            raise RecordError(f"{source}: $.{key}: found {found!r}, expected {expected!r}")
    plans = require_field(manifest, "plans", list, source, "$")
    places = {
        require_field(require_object(plan, source, f"$.plans[{n}]"), "certificates", str, source, f"$.plans[{n}]")
        for n, plan in enumerate(plans)
    }
    reports = []
    for name, entry in require_field(manifest, "files", dict, source, "$").items():
        at, path = f"$.files[{name!r}]", PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise RecordError(f"{source}: {at}: found a path outside the bundle, expected one inside")
        want = require_field(require_object(entry, source, at), "sha256", str, source, at)
        file = Path(folder) / path
        reports.append(FileReport(str(file), _difference(file, want), str(path.parent) in places))
    return tuple(reports)


def _difference(file: Path, want: str) -> str | None:
    try:
        with file.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if found == want else f"changed: found the hash {found[:12]}…, the manifest has {want[:12]}…"
