"""Where backward nodes come from, and when the backward lets go of what was saved."""

import weakref

import torch
from torch import fx

import aot_autograd


def test_backward_nodes_tell_the_line_that_they_differentiate():
    gm = fx.symbolic_trace(lambda x, w: ((x @ w).tanh(),))
    lines = {"matmul": ("model.py", 1, "f", "y = x @ w"), "tanh": ("model.py", 2, "f", "y.tanh()")}
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            node.meta["input"] = {"kind": "argument", "name": node.name, "static": False}
        if node.name in lines:
            node.meta["source_line"] = lines[node.name]
    seen = {}

    def compiler(part, _):
        for node in part.graph.nodes:
            if node.op == "call_function" and part.meta["role"] == "backward":
                seen[str(node.target)] = node.meta["source_line"][1]
        return aot_autograd.make_boxed_func(part.forward)

    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    compiled = aot_autograd.aot_module_simplified(gm, [x, w], fw_compiler=compiler)
    compiled([x, w])[0].sum().backward()
    assert seen["aten.tanh_backward.default"] == 2
    assert seen["aten.mm.default"] == 1


def test_saved_tensors_are_free_while_the_backward_runs():
    saved, alive = [], []

    def forward_compiler(gm, _):
        def run(args):
            outputs = gm.forward(*args)
            args.clear()
            saved.extend(map(weakref.ref, outputs[1:]))
            return outputs

        run.boxed = True
        return run

    def backward_compiler(gm, _):
        def run(args):
            gradients = gm.forward(*args)
            args.clear()
            alive.append(sum(one() is not None for one in saved))
            return gradients

        run.boxed = True
        return run

    compiled = aot_autograd.aot_function(
        lambda x: (x.exp() @ x).tanh() @ x, forward_compiler, backward_compiler
    )
    x = torch.randn(3, 3, requires_grad=True)
    result = compiled(x).sum()
    assert saved
    result.backward(retain_graph=True)
    assert alive.pop() == len(saved)
    result.backward()
    assert alive.pop() == 0
