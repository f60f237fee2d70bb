"""FX graphs before lowering: what wire 3 promises, checked.

`check_wire` refuses a graph that isn't functional or isn't made of operators.
"""

from inductor.graph.wire import check_wire

__all__ = ["check_wire"]
