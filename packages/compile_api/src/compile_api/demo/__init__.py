"""The demo: real models compiled, checked against float64 and timed beside eager, in one table."""
