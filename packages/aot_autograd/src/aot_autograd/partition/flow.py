"""Minimum cut by Dinic's algorithm on integer-indexed arrays.

Comes in: directed edges with float capacities (`INFINITE` where a cut must not pass). Goes out: the
set of vertices on the source side of a minimum cut. Its own file because a general graph library
spends a hundred times longer per edge on dictionaries of attributes, and the networks here have
two vertices per operator of a model. Invariant: capacities are not negative.
"""

from __future__ import annotations

INFINITE = float("inf")


class Network:
    """A flow network; vertices are numbers from 0 to `vertices - 1`."""

    def __init__(self, vertices: int) -> None:
        self._heads: list[int] = []
        self._capacity: list[float] = []
        self._edges: list[list[int]] = [[] for _ in range(vertices)]

    def edge(self, tail: int, head: int, capacity: float) -> None:
        """Add a directed edge."""
        edges = self._edges
        edges[tail].append(len(self._heads))
        self._heads.append(head)
        self._capacity.append(capacity)
        edges[head].append(len(self._heads))
        self._heads.append(tail)
        self._capacity.append(0.0)

    def minimum_cut(self, source: int, sink: int) -> list[bool]:
        """For each vertex, whether it lies on the source's side.

        Raises:
            ValueError: if every cut passes an infinite edge.
        """
        while True:
            level = self._levels(source, sink)
            if level[sink] < 0:
                return [depth >= 0 for depth in level]
            self._block(source, sink, level)

    def _levels(self, source: int, sink: int) -> list[int]:
        heads, capacity, edges = self._heads, self._capacity, self._edges
        level = [-1] * len(edges)
        level[source] = 0
        frontier = [source]
        while frontier:
            following: list[int] = []
            for vertex in frontier:
                depth = level[vertex] + 1
                for edge in edges[vertex]:
                    if capacity[edge] > 0:
                        head = heads[edge]
                        if level[head] < 0:
                            level[head] = depth
                            following.append(head)
            if level[sink] >= 0:
                return level
            frontier = following
        return level

    def _block(self, source: int, sink: int, level: list[int]) -> None:
        heads, capacity, edges = self._heads, self._capacity, self._edges
        position = [0] * len(edges)
        path: list[int] = []
        vertex = source
        while True:
            if vertex == sink:
                amount = min(capacity[edge] for edge in path)
                if amount == INFINITE:
                    raise ValueError("the source reaches the sink through infinite edges alone")
                first = len(path)
                for index, edge in enumerate(path):
                    capacity[edge] -= amount
                    capacity[edge ^ 1] += amount
                    if capacity[edge] <= 0 and index < first:
                        first = index
                vertex = heads[path[first] ^ 1]
                del path[first:]
                continue
            out = edges[vertex]
            index = position[vertex]
            deeper = level[vertex] + 1
            while index < len(out):
                edge = out[index]
                if capacity[edge] > 0 and level[heads[edge]] == deeper:
                    break
                index += 1
            position[vertex] = index
            if index < len(out):
                path.append(edge)
                vertex = heads[edge]
            elif path:
                # A dead end: its level is taken away so that no other path tries it.
                level[vertex] = -1
                vertex = heads[path.pop() ^ 1]
            else:
                return
