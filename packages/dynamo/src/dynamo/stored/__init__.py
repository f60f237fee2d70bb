"""Entries as bytes, so that another process need not capture again.

`write_entry` makes bytes of what a capture made; `read_entry` makes the entry again, for one call: it looks up every
object that the capture met, verifies that its code is what it was, and gives the guards operands of this process.
Whether the entry serves the call is then decided by its guards, like for any entry. Invariant: an entry is only
restored where capturing the same call again would have made the same entry.
"""

from dynamo.assumptions import Assumptions
from dynamo.stored.entry import Restored, read_entry, write_entry

__all__ = ["Assumptions", "Restored", "read_entry", "write_entry"]
