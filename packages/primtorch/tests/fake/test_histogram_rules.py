"""Rules of histograms: what they promise is what eager gives, whatever the options; refusals are its own."""

import pytest
import torch

from primtorch.fake import infer, meta_of

aten = torch.ops.aten
X = torch.linspace(-2, 3, 24).reshape(4, 6)
TURNED = X.t()
EDGES = torch.linspace(-1, 2, 5)
CALLS = {
    "histogram": (aten.histogram.bin_ct, (X, 7)),
    "histogram, edges": (aten.histogram.bins_tensor, (TURNED, EDGES)),
    "edges": (aten._histogramdd_bin_edges.default, (X[:, :2], [2, 3])),
    "several dimensions": (aten._histogramdd_from_bin_cts.default, (X[:, :2], [2, 3])),
    "several, edges": (aten._histogramdd_from_bin_tensors.default, (X[:, :2], [EDGES, EDGES[:3]])),
}
WEIGHTS = {"histogram": X, "histogram, edges": TURNED}
RANGES = {"histogram": (-1.0, 1.0), "edges": (-1.0, 1.0, 0.0, 2.0)}
RANGES["several dimensions"] = RANGES["edges"]


def agree(operator, arguments, options):
    given, promised = operator(*arguments, **options), infer(operator, arguments, options)
    if isinstance(given, torch.Tensor):
        given, promised = [given], [promised]
    assert [meta_of(one) for one in given] == list(promised)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_promised_is_given(name):
    operator, arguments = CALLS[name]
    agree(operator, arguments, {})
    weight = WEIGHTS.get(name, torch.ones(4))
    agree(operator, arguments, {"weight": weight, "density": True})
    if name in RANGES:
        agree(operator, arguments, {"range": RANGES[name]})


REFUSED = {
    "integers": (aten.histogram.bin_ct, (torch.arange(4), 7)),
    "no bins": (aten.histogram.bin_ct, (X, 0)),
    "edges of another dtype": (aten.histogram.bins_tensor, (X, EDGES.double())),
    "a vector": (aten._histogramdd_from_bin_cts.default, (X[0], [2])),
    "too few numbers of bins": (aten._histogramdd_from_bin_cts.default, (X[:, :2], [2])),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name):
    operator, arguments = REFUSED[name]
    with pytest.raises(Exception) as expected:  # noqa: PT011  its type is the datum
        operator(*arguments)
    with pytest.raises(type(expected.value)):
        infer(operator, arguments)
