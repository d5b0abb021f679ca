"""Tuning history: trials and selections, stored with the measured times, so that a second run does little work.

A winner is stored as its steps, which are replayed and certified again.  Keys contain the processor, the versions of
the libraries and those that this package declares, so results of another version are not used.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from typing import Any

from einnet_explore.codegen.versions import all_versions
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.runtime.profile_store import device_name, library_versions, package_version

_TABLE = "CREATE TABLE IF NOT EXISTS remembered (what TEXT, key TEXT, found TEXT NOT NULL, PRIMARY KEY (what, key))"


class TuningHistory:
    """JSON documents by kind and key, in the file of *store*.

    If that file cannot be used, documents last as long as this object; the store reports why.
    """

    def __init__(self, store: ProfileStore) -> None:
        self.path = store.path
        self._written: dict[tuple[str, str], str] = {}

    def get(self, what: str, *parts: object) -> Any:
        """Return the document for the key *parts*, or None."""
        key = _key(parts)
        if (what, key) in self._written:
            return json.loads(self._written[what, key])
        try:
            with closing(sqlite3.connect(self.path, timeout=20)) as connection, connection:
                connection.execute(_TABLE)
                row = connection.execute(
                    "SELECT found FROM remembered WHERE what = ? AND key = ?", (what, key)
                ).fetchone()
            return json.loads(row[0]) if row else None
        except (sqlite3.Error, OSError, ValueError):
            return None

    def put(self, found: Any, what: str, *parts: object) -> None:
        """Store the document *found* under the key *parts*."""
        key, text = _key(parts), json.dumps(found)
        self._written[what, key] = text
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=20)) as connection, connection:
                connection.execute(_TABLE)
                connection.execute("INSERT OR REPLACE INTO remembered VALUES (?, ?, ?)", (what, key, text))
        except (sqlite3.Error, OSError):
            return


def _key(parts: tuple[object, ...]) -> str:
    versions = (package_version("einnet-explore"), all_versions())
    text = "\n".join((*map(str, parts), device_name(), library_versions(), *versions))
    return hashlib.sha256(text.encode()).hexdigest()
