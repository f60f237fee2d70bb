"""Steps of an optimizer over more than the caches hold: read at several places in turn, with eager's results."""

import pytest
import torch

import compile_api


@pytest.mark.parametrize(("keywords", "places"), [({}, 4), ({"momentum": 0.9}, 2)])
def test_a_step_of_large_parameters(keywords, places):
    def made():
        generator = torch.Generator().manual_seed(0)
        parameter = torch.nn.Parameter(torch.randn(2200, 2011, generator=generator))
        parameter.grad = torch.randn(2200, 2011, generator=generator)
        return parameter, torch.optim.SGD([parameter], lr=0.1, foreach=True, **keywords)

    expected, eager = made()
    found, optimizer = made()
    with torch.no_grad():
        step = compile_api.compile(optimizer.step, options={"strict": True})
        for _ in range(3):
            eager.step()
            step()
        torch.testing.assert_close(found, expected)
        report = compile_api.explain(optimizer.step)
    assert f"at {places} places in turn" in report.stages["07_schedule.txt"].text
