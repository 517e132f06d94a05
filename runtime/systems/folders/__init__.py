"""Folders that grow, on this machine and in object stores: files that come are read, and files roll into them."""
