"""Keyed state, timers and the indexes over an operator's store."""
