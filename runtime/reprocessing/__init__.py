"""Reprocessing of history: recomputation, handover and merge with live results."""
