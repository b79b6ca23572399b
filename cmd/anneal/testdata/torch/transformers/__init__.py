"""Replaces transformers: see torch."""
