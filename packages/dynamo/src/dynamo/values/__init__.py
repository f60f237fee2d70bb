"""What the interpreter knows of each kind of value.

Values are the program's own Python objects. A tensor is a `FakeTensor`; a container that existed before the
call is a copy of itself (`shadows`), so that changes stay inside the capture until they are replayed; an
object that existed before is itself, its attributes read through `attributes` and its changes kept in a
shadow of its `__dict__`. `session` holds what is known of their identity: sources, guards, copies.
"""
