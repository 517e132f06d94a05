"""Code generation: runs of stateless operators and windows fused into Python source."""
