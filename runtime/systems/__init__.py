"""Where streams live: one system per file, behind the ports of `base`."""
