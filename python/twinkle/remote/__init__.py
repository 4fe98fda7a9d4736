"""Objects whose ranks live in other processes, and the calls to them."""
