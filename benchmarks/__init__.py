"""Side-by-side measurements of what this tree promises; `benchmarks/run` is the command."""
