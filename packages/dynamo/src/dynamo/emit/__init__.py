"""From the end of a capture back to Python: outputs rebuilt, side effects replayed, capture resumed."""
