"""Frames of pandas, polars and Arrow as inputs, and as what an output has come to."""
