"""The part of a plan that can run on columns, and the reasons why the rest cannot."""
