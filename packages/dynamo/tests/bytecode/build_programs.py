"""Run by test_roundtrip: small programs made with `build`, run on this interpreter."""

import operator
import sys
import types

package = types.ModuleType("dynamo")
package.__path__ = [sys.argv[1]]
sys.modules["dynamo"] = package
from dynamo.bytecode import (  # noqa: E402  # found through the stand-in above
    BytecodeError,
    ExceptionHandler,
    Header,
    Instruction,
    assemble,
    decode,
    live_locals,
    stack_depths,
)
from dynamo.bytecode import build as b  # noqa: E402


def function(body, arguments=(), cells=(), free=()):
    header = Header(
        "made",
        "made",
        "<made>",
        1,
        len(arguments),
        local_names=tuple(arguments),
        cell_names=tuple(cells),
        free_names=tuple(free),
    )
    code = assemble([*b.prologue(cells, free), *body], header)
    return types.FunctionType(code, globals(), "made")


def returned(*body, arguments=()):
    return function([*body, b.return_value()], arguments)


def show(*args, **kwargs):
    return args, kwargs


def raises(run):
    try:
        run()
    except BytecodeError as error:
        return str(error)
    raise AssertionError("nothing was raised")


def load(names):
    return [b.load_fast(name) for name in names]


def calls():
    two = [b.load_fast("x")], [b.load_fast("y")]
    made = returned(*b.call([b.load_global("show")], *two), arguments="xy")
    assert made(1, 2) == ((1, 2), {})
    assert returned(*b.call([b.load_global("show")]))() == ((), {})
    made = returned(*b.call([b.load_const(show)], *two, keywords=("k",)), arguments="xy")
    assert made(1, 2) == ((1,), {"k": 2})
    start = b.begin_call([b.load_const(show)])
    made = returned(*start, *load("xy"), *b.end_call_spread(keywords=True), arguments="xy")
    assert made((1, 2), {"a": 3}) == ((1, 2), {"a": 3})
    made = returned(*start, *load("x"), *b.end_call_spread(keywords=False), arguments="x")
    assert made((1, 2)) == ((1, 2), {})
    for count in range(4):
        end = [*b.call_prepared(count), *b.end_call(count)]
        made = returned(b.load_const(show), *load("xyz"[:count]), *end, arguments="xyz")
        assert made(1, 2, 3) == ((1, 2, 3)[:count], {})
    assert returned(*load("x"), *b.call_method("upper", 0), arguments="x")("a") == "A"
    made = returned(*load("xyz"), *b.call_method("replace", 2), arguments="xyz")
    assert made("abc", "b", "-") == "a-c"


def data():
    assert returned(*load("xy"), b.build_tuple(2), arguments="xy")(1, 2) == (1, 2)
    made = returned(b.build_list(0), *load("x"), b.list_extend(1), arguments="x")
    assert made((1, 2)) == [1, 2]
    made = returned(*load("xy"), b.build_map(1), *load("z"), b.dict_update(1), arguments="xyz")
    assert made(1, 2, {3: 4}) == {1: 2, 3: 4}
    assert returned(*load("xy"), b.build_set(2), arguments="xy")(1, 2) == {1, 2}
    made = returned(*load("x"), b.unpack_sequence(2), b.build_tuple(2), arguments="x")
    assert made("ab") == ("b", "a")
    cut = [b.load_const(0), b.load_const(2), b.build_slice(2), b.load_item()]
    assert returned(*load("x"), *cut, arguments="x")([1, 2, 3]) == [1, 2]
    three = [b.load_const(name) for name in "abc"]
    assert returned(*three, *b.rotate_down(3), b.build_tuple(3))() == ("c", "a", "b")
    assert returned(*three, b.build_string(3))() == "abc"
    assert returned(*three, b.swap(3), b.copy_value(2), b.build_tuple(4))() == tuple("cbab")
    box = types.SimpleNamespace(a=1)
    store = [b.load_const(5), *load("x"), b.store_attr("a")]
    made = returned(*store, *load("x"), b.load_attr("a"), arguments="x")
    assert made(box) == 5 == box.a
    store = [b.load_const(5), *load("x"), b.load_const("k"), b.store_item()]
    assert returned(*store, *load("x"), arguments="x")({}) == {"k": 5}
    constants = [b.load_const(v) for v in (1, 1.0, True, 0.0, -0.0, (0.0,), (-0.0,))]
    made = returned(*constants, b.build_tuple(7))
    assert repr(made()) == "(1, 1.0, True, 0.0, -0.0, (0.0,), (-0.0,))"


BINARY = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
}
COMPARE = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}
PAIRS = ((1, 2), (2, 2), (3, 2), (1.5, 2.5), ("a", "b"), (float("nan"), 1.0))


def operators():
    for spelling, meaning in BINARY.items():
        for form in (spelling, spelling + "="):
            made = returned(*load("xy"), b.binary_op(form), arguments="xy")
            assert made(7, 2) == meaning(7, 2), form
    for spelling, meaning in COMPARE.items():
        made = returned(*load("xy"), b.compare_op(spelling), arguments="xy")
        for _ in range(50):  # long enough to be specialised
            for left, right in PAIRS:
                assert made(left, right) == meaning(left, right), spelling
        done = b.load_const("no")
        test = [*load("xy"), b.compare_op(spelling), *b.pop_jump_if_false(done)]
        made = function(
            [*test, b.load_const("yes"), b.return_value(), done, b.return_value()], "xy"
        )
        for _ in range(50):
            for left, right in PAIRS:
                assert made(left, right) == ("yes" if meaning(left, right) else "no"), spelling
    assert returned(*load("x"), b.load_const(None), b.is_op(negate=True), arguments="x")(3) is True
    assert returned(*load("xy"), b.contains_op(), arguments="xy")(1, [1]) is True
    assert returned(*load("x"), *b.unary_not(), arguments="x")([]) is True


JUMPS = (
    (b.pop_jump_if_true, [1], []),
    (b.pop_jump_if_false, [], [1]),
    (b.pop_jump_if_none, None, 1),
    (b.pop_jump_if_not_none, 1, None),
)


def jumps():
    for jump, taken, other in JUMPS:
        for filler in (0, 126, 300, 70_000):
            there = b.load_const("there")
            between = [*(b.nop() for _ in range(filler)), b.load_const("here"), b.return_value()]
            made = function([*load("x"), *jump(there), *between, there, b.return_value()], "x")
            assert made(taken) == "there"
            assert made(other) == "here"
    head, out = b.load_fast("x"), b.load_fast("y")
    loop = [head, *b.pop_jump_if_false(out)]
    loop += [*load("yx"), b.binary_op("+="), b.store_fast("y")]
    loop += [*load("x"), b.load_const(1), b.binary_op("-"), b.store_fast("x")]
    loop += [b.jump_backward(head), out, b.return_value()]
    assert function(loop, "xy")(10, 0) == 55
    assert live_locals(loop, out) == {"y"}
    assert live_locals(loop, head) == {"x", "y"}


def handlers():
    caught = Instruction("PUSH_EXC_INFO")
    tried = b.call(load("x"))
    handler = ExceptionHandler(caught, 0, False)
    for instruction in tried:
        instruction.handler = handler
    body = [*tried, b.return_value(), caught, b.pop_top(), Instruction("POP_EXCEPT")]
    body += [b.load_const("caught"), b.return_value()]
    assert function(body, "x")(lambda: 1) == 1
    assert function(body, "x")(lambda: 1 // 0) == "caught"
    assert stack_depths([*b.prologue(), *body])[caught] == 1


def functions():
    header = Header("inner", "inner", "<made>", 1, free_names=("x",), flags=0x13)
    code = assemble([*b.prologue((), "x"), b.load_deref("x"), b.return_value()], header)
    body = [b.load_closure("x"), b.build_tuple(1), b.load_const(code)]
    outer = function([*body, *b.make_function(closure=True), b.return_value()], "x", cells="x")
    assert outer(42)() == 42
    plain = (lambda p=0, *, q=0: (p, q)).__code__
    defaults = [b.load_const((7,)), b.load_const({"q": 8}), b.load_const(plain)]
    made = returned(*defaults, *b.make_function(defaults=True, keyword_defaults=True))
    assert made()() == (7, 8)
    # decoded instructions move into another code object with other pools
    moved = decode((lambda x, y: [x, show(y, name=x.real), x if y else None]).__code__)
    pools = {"names": ("unused",), "constants": ("unused",)}
    header = Header("m", "m", "<m>", 1, 2, local_names=("x", "y"), **pools)
    made = types.FunctionType(assemble(moved, header), globals())
    assert made(3, 4) == [3, ((4,), {"name": 3}), 3]


def faults():
    assert "falls off" in raises(lambda: function([b.load_const(1)]))
    assert "empty" in raises(lambda: function([b.pop_top(), b.load_const(1), b.return_value()]))
    assert "jumps out" in raises(lambda: function([b.jump_forward(b.nop())]))
    assert "cell" in raises(lambda: returned(b.load_deref("nothing")))
    there = b.nop()
    assert "depths" in raises(lambda: function([there, b.load_const(1), b.jump_backward(there)]))
    assert "direction" in raises(
        lambda: function([there := b.load_const(1), b.jump_forward(there)])
    )
    assert "no opcode" in raises(lambda: function([Instruction("FLY")]))


for part in (calls, data, operators, jumps, handlers, functions, faults):
    part()
sys.stdout.write("all right\n")
