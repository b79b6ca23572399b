"""Replaces peft: see torch."""
