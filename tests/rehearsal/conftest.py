"""What tests of rehearsals share."""

from __future__ import annotations

from kept import kept_texts  # noqa: F401  a fixture
