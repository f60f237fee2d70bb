"""The logs: one logger per topic below `compile_api`, switched on by COMPILE_API_LOGS.

    COMPILE_API_LOGS=graph_breaks,recompiles python train.py

Standard `logging` throughout: without the variable nothing is attached, and a program's own handlers
on `compile_api` or on a topic (`compile_api.kernels`) see the records.
"""

from __future__ import annotations

import logging
import sys

from compile_api.errors import InvalidArgument, nearest
from compile_api.options import log_topics

__all__ = ["TOPICS", "configure", "emit", "emit_stage", "enabled", "stages_enabled"]

TOPICS = ("bytecode", "graph", "guards", "graph_breaks", "recompiles", "joint", "loops", "schedule",
          "kernels", "program", "cache", "times")  # fmt: skip
_TOPIC_OF_STAGE = {
    "00": "bytecode",
    "01": "graph",
    "02": "guards",
    "03": "joint",
    "04": "joint",
    "05": "joint",
    "06": "loops",
    "07": "schedule",
    "08": "kernels",
    "09": "program",
}
_ROOT = logging.getLogger("compile_api")
_LOGGERS = {topic: logging.getLogger(f"compile_api.{topic}") for topic in TOPICS}


def enabled() -> bool:
    """Tells whether any topic is listened to."""
    return any(logger.isEnabledFor(logging.INFO) for logger in _LOGGERS.values())


def stages_enabled() -> bool:
    """Tells whether any topic is listened to that only a compilation, not a restored program, has."""
    return any(
        logger.isEnabledFor(logging.INFO)
        for topic, logger in _LOGGERS.items()
        if topic in _TOPIC_OF_STAGE.values()
    )


def emit(topic: str, text: str) -> None:
    """Writes one record of a topic."""
    _LOGGERS[topic].info("%s", text)


def emit_stage(graph: int, stage: str, text: str) -> None:
    """Writes a stage's text under its topic."""
    logger = _LOGGERS[_TOPIC_OF_STAGE[stage[:2]]]
    if logger.isEnabledFor(logging.INFO):
        logger.info("graph %d, %s\n%s", graph, stage, text)


def configure() -> None:
    """Attaches a handler on stderr for the topics that COMPILE_API_LOGS names.

    Raises:
        InvalidArgument: a topic that doesn't exist; the nearest is given.
    """
    topics = log_topics()
    for topic in topics:
        if topic != "all" and topic not in TOPICS:
            best = nearest(topic, TOPICS)
            hint = f"\n  did you mean: {best!r}?" if best else ""
            valid = ", ".join((*TOPICS, "all"))
            raise InvalidArgument(
                f"COMPILE_API_LOGS names no topic {topic!r}{hint}\n  valid are: {valid}"
            )
    if not topics:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
    _ROOT.addHandler(handler)
    for topic in TOPICS if "all" in topics else topics:
        _LOGGERS[topic].setLevel(logging.INFO)
