"""What tests that run programs share."""

from __future__ import annotations

import jax
import pytest


@pytest.fixture(scope="module")
def caches_cleared_afterwards():
    """Compiled functions go when a module's tests are done: thousands of them are held otherwise."""
    yield
    jax.clear_caches()
