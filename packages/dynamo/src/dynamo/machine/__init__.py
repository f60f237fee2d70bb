"""The symbolic interpreter: frames, the loop that runs them, and one function per opcode."""
