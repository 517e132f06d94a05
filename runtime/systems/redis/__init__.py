"""Redis as a source of streams' entries, and as a sink of hashes and entries that keeps our positions beside them."""
