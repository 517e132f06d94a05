"""Pictures of a plan: text, Mermaid, DOT, SVG and an HTML page."""
