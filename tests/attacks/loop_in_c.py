"""Computes for hours inside one call that no signal interrupts."""

x = 7 ** (10**9)
