"""What axe finds wrong with a page for readers who see it otherwise, or use no mouse."""

from __future__ import annotations

import sys
from typing import Any

import pytest

# The library that brings axe needs Python 3.12. Pages are the same on every Python.
needs_axe = pytest.mark.skipif(sys.version_info < (3, 12), reason="axe-selenium-python needs Python 3.12")


def violations(browser: Any) -> list[str]:
    """Each element of the page that breaks a rule of axe, with the rule: WCAG A and AA, and good practice."""
    from axe_selenium_python import Axe

    axe = Axe(browser)
    axe.inject()
    found = axe.run()
    assert found["passes"], "axe has looked at nothing"
    return [f"{rule['id']}: {node['html'][:200]}" for rule in found["violations"] for node in rule["nodes"]]
