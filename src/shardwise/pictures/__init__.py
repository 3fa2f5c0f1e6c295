"""Sight: one neutral picture of where arrays live, what moves and when, and the renderers that draw it: text, SVG, HTML."""
