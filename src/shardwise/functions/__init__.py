"""Whole functions: the doctor, which says why arrays move and what would be cheaper."""
