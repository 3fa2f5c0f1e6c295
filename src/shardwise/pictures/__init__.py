"""Sight: where arrays live, drawn as text."""
