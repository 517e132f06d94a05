"""The control room: runs note their numbers in files, and a page in the browser shows them live."""
