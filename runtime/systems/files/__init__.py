"""Files as inputs, outputs and archives: JSON lines, CSV and Parquet."""
