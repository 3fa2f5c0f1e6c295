"""What tests of overlapped functions share."""

from __future__ import annotations

from kept import kept_texts  # noqa: F401  a fixture
