"""From operator specs to a frozen plan: named passes, fusion into Python source, and drawings."""
