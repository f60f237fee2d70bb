"""Every opcode of the running interpreter is executed symbolically or is a declared break."""

import dis

import pytest

import dynamo.machine.opcodes
from dynamo.machine.program import OPCODES, opcode

assert dynamo.machine.opcodes is not None, "imported for its registrations"


def test_every_opcode_has_a_function():
    names = {
        name
        for name, number in dis.opmap.items()
        if number < 256 and not name.startswith("INSTRUMENTED")
    }
    assert not names - OPCODES.keys()


def test_a_second_function_for_an_opcode_is_refused():
    with pytest.raises(ValueError, match="LOAD_CONST"):
        opcode("LOAD_CONST")(lambda machine, frame, op: None)
