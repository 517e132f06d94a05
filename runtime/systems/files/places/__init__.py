"""The places of files: paths, globs, URLs and folders, and the bytes that lie there."""
