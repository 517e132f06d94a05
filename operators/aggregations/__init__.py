"""Aggregations: partial results that are added to, merged and finished."""
