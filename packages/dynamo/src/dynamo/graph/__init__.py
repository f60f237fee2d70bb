"""The captured graph: recording of torch calls, inputs, sizes."""
