"""Small calls of torch's operators, to be compiled with symbolic sizes: a name and an expression each.

The expressions see `F` (`torch.nn.functional`), `torch`, and the tensors of `inputs(n)`, whose sizes all vary with `n`
except where an operator fixes them. Left out: what has as many results as a size (`unbind`), and what breaks
the graph whatever the sizes (`unique`, `bincount`).
"""

import torch
import torch.nn.functional as F

SIZES = (4, 6, 9)


def inputs(n):
    """The tensors that the expressions name, for one size."""
    generator = torch.Generator().manual_seed(n)

    def randn(*shape):
        return torch.randn(*shape, generator=generator)

    square = randn(n, n)
    return {
        "x": randn(n, n + 2),
        "y": randn(n, n + 2),
        "z": randn(n + 2, n),
        "v": randn(n),
        "u": randn(n),
        "k": randn(n).abs() + 0.5,
        "p": randn(n, n + 2).abs() + 0.5,
        "q": torch.rand(n, n + 2, generator=generator) * 0.8 + 0.1,
        "s": square,
        "d": square @ square.mT + n * torch.eye(n),
        "b": randn(3, n, n + 1),
        "e": randn(3, n + 1, n),
        "t": randn(2, 3, n),
        "c": randn(2, 3, n + 2, n + 4),
        "o": randn(1, 2, n, n + 1, n + 2),
        "m": randn(n, n + 2) > 0,
        "i": torch.randint(0, n, (n, n + 2), generator=generator),
        "j": torch.randint(0, n, (n,), generator=generator),
        "w": torch.randint(1, 9, (n, n + 2), generator=generator),
        "g": torch.complex(randn(n, n), randn(n, n)),
        "w1": randn(4, 3, 3),
        "w2": randn(4, 3, 3, 3),
        "w3": randn(4, 2, 3, 3, 3),
        "r2": randn(3, 4, 3, 3),
        "h": randn(2, 2, n, 8),
    }


def _words(text):
    return text.split()


_POINTWISE = _words(
    """
    abs acos acosh angle asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp
    exp2 expm1 fix floor frac i0 isfinite isinf isnan isneginf isposinf isreal lgamma log log10
    log1p log2 logit nan_to_num neg positive rad2deg reciprocal relu round rsqrt selu sgn sigmoid
    sign signbit sin sinc sinh sqrt square tan tanh trunc
    """
)
_BINARY = _words(
    """
    add sub mul div atan2 copysign eq ne lt le gt ge fmax fmin fmod hypot logaddexp logaddexp2
    maximum minimum nextafter pow remainder xlogy floor_divide heaviside true_divide
    """
)
_SPECIAL = _words(
    """
    bessel_j0 bessel_j1 entr erfcx expit i0e i1 i1e log_ndtr log_softmax ndtr ndtri softmax zeta
    """
)
_ACTIVATIONS = _words(
    """
    celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu6 silu
    softplus softshrink softsign tanhshrink threshold
    """
)
_REDUCTIONS = _words(
    """
    sum mean prod std var amax amin argmax argmin logsumexp any all nansum nanmean median nanmedian
    aminmax count_nonzero norm std_mean var_mean mode cumsum cumprod cummax cummin logcumsumexp
    softmax log_softmax sort argsort max min flip diff
    """
)
_NEEDS_DIMENSION = {
    "logsumexp", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "softmax", "log_softmax", "flip",
}  # fmt: skip
_LINALG = _words(
    """
    cholesky cholesky_ex cond det eigh eigvalsh inv inv_ex lu lu_factor matrix_norm matrix_rank norm
    pinv qr slogdet svdvals vector_norm ldl_factor matrix_exp
    """
)

CALLS = {
    **{name: f"torch.{name}(q)" for name in _POINTWISE},
    **{name: f"torch.{name}(x, p)" for name in _BINARY},
    **{f"special.{name}": f"torch.special.{name}(q)" for name in _SPECIAL},
    **{f"F.{name}": f"F.{name}(x)" for name in _ACTIVATIONS},
    **{name: f"torch.{name}(x)" for name in _REDUCTIONS if name not in _NEEDS_DIMENSION},
    **{f"{name} of a dimension": f"torch.{name}(x, dim=1)" for name in _REDUCTIONS
       if name not in ("norm", "flip", "count_nonzero")},
    **{f"linalg.{name}": f"torch.linalg.{name}(d)" for name in _LINALG},
}  # fmt: skip
CALLS |= {
    "special.softmax": "torch.special.softmax(q, 0)",
    "special.log_softmax": "torch.special.log_softmax(q, 0)",
    "special.zeta": "torch.special.zeta(p + 1, q)",
    "F.threshold": "F.threshold(x, 0.1, 2.0)",
    "F.glu": "F.glu(torch.cat([x, y], 1))",
    "F.prelu": "F.prelu(x, v[:1])",
    "F.rrelu": "F.rrelu(x)",
    "acosh": "torch.acosh(p + 1)",
    "flip": "torch.flip(x, (0, 1))",
    "flip of a dimension": "x.flip(1)",
    "norm of a dimension": "torch.norm(x, dim=1)",
    "addbmm": "torch.addbmm(s, b, e)",
    "addcdiv": "torch.addcdiv(x, y, p)",
    "addcmul": "torch.addcmul(x, y, p)",
    "addmm": "torch.addmm(v, x, z)",
    "addmv": "torch.addmv(v, s, u)",
    "addr": "torch.addr(s, v, u)",
    "allclose-free isclose": "torch.isclose(x, y)",
    "atleast_1d": "torch.atleast_1d(v)[0]",
    "atleast_2d": "torch.atleast_2d(v)",
    "atleast_3d": "torch.atleast_3d(x)",
    "baddbmm": "torch.baddbmm(b @ e, b, e)",
    "bitwise_and": "torch.bitwise_and(w, i)",
    "bitwise_left_shift": "torch.bitwise_left_shift(w, 2)",
    "bitwise_not": "torch.bitwise_not(w)",
    "block_diag": "torch.block_diag(x, s)",
    "bmm": "torch.bmm(b, e)",
    "broadcast_tensors": "torch.broadcast_tensors(v[:, None], x)",
    "broadcast_to": "torch.broadcast_to(v, (3, v.shape[0]))",
    "bucketize": "torch.bucketize(x, v.sort()[0])",
    "cartesian_prod": "torch.cartesian_prod(v, u)",
    "cat": "torch.cat([x, y, x[:1]])",
    "cdist": "torch.cdist(x, y)",
    "cdist 1": "torch.cdist(x, y, p=1.0)",
    "chain_matmul": "torch.chain_matmul(x, z, x)",
    "cholesky_inverse": "torch.cholesky_inverse(torch.linalg.cholesky(d))",
    "cholesky_solve": "torch.cholesky_solve(x, torch.linalg.cholesky(d))",
    "chunk": "torch.chunk(x, 2)",
    "clamp": "torch.clamp(x, -0.5, 0.5)",
    "clamp tensors": "torch.clamp(x, -p, p)",
    "column_stack": "torch.column_stack([v, x])",
    "complex": "torch.complex(x, y)",
    "conj": "torch.conj(g).resolve_conj() + 1",
    "constant_pad": "F.pad(x, (1, 2))",
    "corrcoef": "torch.corrcoef(x)",
    "cov": "torch.cov(x)",
    "cross": "torch.linalg.cross(t.mT, t.mT + 1)",
    "cumulative_trapezoid": "torch.cumulative_trapezoid(x)",
    "diag": "torch.diag(v)",
    "diag of a matrix": "torch.diag(x)",
    "diag_embed": "torch.diag_embed(x)",
    "diagflat": "torch.diagflat(v)",
    "diagonal": "torch.diagonal(x)",
    "diagonal_scatter": "torch.diagonal_scatter(s, v)",
    "diff 2": "torch.diff(x, n=2)",
    "dist": "torch.dist(x, y)",
    "dot": "torch.dot(v, u)",
    "dsplit": "torch.dsplit(b[..., :2], 2)",
    "dstack": "torch.dstack([x, y])",
    "einsum": "torch.einsum('ij,ik->jk', x, y)",
    "einsum batch": "torch.einsum('bij,bjk->bik', b, e)",
    "equal sizes": "x * (x.shape[0] == y.shape[0])",
    "expand": "v.expand(2, 3, v.shape[0])",
    "expand_as": "v[:, None].expand_as(x)",
    "fft": "torch.fft.fft(s).abs()",
    "fft2": "torch.fft.fft2(s).abs()",
    "fftn": "torch.fft.fftn(b).abs()",
    "fftshift": "torch.fft.fftshift(x)",
    "fftfreq": "torch.fft.fftfreq(v.shape[0]) + v",
    "hfft": "torch.fft.hfft(g)",
    "ifft": "torch.fft.ifft(g).abs()",
    "irfft": "torch.fft.irfft(g)",
    "rfft": "torch.fft.rfft(x).abs()",
    "rfft2": "torch.fft.rfft2(x).abs()",
    "flatten": "torch.flatten(b)",
    "flatten two": "torch.flatten(b, 1)",
    "fliplr": "torch.fliplr(x)",
    "flipud": "torch.flipud(x)",
    "full": "torch.full((x.shape[0], 2), 3.0) + v[:, None]",
    "full_like": "torch.full_like(x, 2) + x",
    "arange": "torch.arange(x.shape[0]) + v",
    "arange step": "torch.arange(0, x.shape[0] * 2, 2) + v",
    "linspace": "torch.linspace(0, 1, x.shape[0]) + v",
    "logspace": "torch.logspace(0, 1, x.shape[0]) + v",
    "eye": "torch.eye(x.shape[0]) + s",
    "zeros": "torch.zeros(x.shape) + x",
    "ones_like": "torch.ones_like(x) + x",
    "new_zeros": "x.new_zeros(x.shape[1]) + x",
    "tri indices": "torch.tril_indices(v.shape[0], v.shape[0])",
    "triu indices": "torch.triu_indices(v.shape[0], v.shape[0], 1)",
    "hamming_window": "torch.hamming_window(v.shape[0]) + v",
    "hann_window": "torch.hann_window(v.shape[0]) + v",
    "bartlett_window": "torch.bartlett_window(v.shape[0]) + v",
    "blackman_window": "torch.blackman_window(v.shape[0]) + v",
    "kaiser_window": "torch.kaiser_window(v.shape[0]) + v",
    "vander": "torch.vander(v, 3)",
    "vander square": "torch.vander(v)",
    "gather": "torch.gather(x, 0, i)",
    "take": "torch.take(x, i)",
    "take_along_dim": "torch.take_along_dim(x, i, 0)",
    "scatter": "torch.scatter(x, 0, i, y)",
    "scatter_add": "torch.scatter_add(x, 0, i, y)",
    "scatter_reduce": "torch.scatter_reduce(x, 0, i, y, 'amax')",
    "index_select": "torch.index_select(x, 0, j)",
    "index": "x[j]",
    "index two": "x[j, j]",
    "index negative": "x[-1]",
    "index ellipsis": "b[..., -1]",
    "index None": "x[:, None]",
    "index slice": "x[1:-1, ::2]",
    "index_add": "torch.index_add(x, 0, j, y)",
    "index_copy": "torch.index_copy(x, 0, torch.arange(x.shape[0]), y)",
    "index_fill": "torch.index_fill(x, 0, j, 2.0)",
    "index_put": "torch.index_put(x, (j,), y)",
    "index_reduce": "torch.index_reduce(x, 0, j, y, 'amax')",
    "masked_fill": "torch.masked_fill(x, m, 1.0)",
    "masked_scatter": "torch.masked_scatter(x, m, y)",
    "where": "torch.where(m, x, y)",
    "put": "torch.Tensor.put(x, j, v)",
    "gradient": "torch.gradient(x)",
    "histc": "torch.histc(x, 5)",
    "hsplit": "torch.hsplit(torch.cat([x, x], 1), 2)",
    "hstack": "torch.hstack([x, y])",
    "inner": "torch.inner(x, y)",
    "isin": "torch.isin(w, i)",
    "kron": "torch.kron(x, s)",
    "kthvalue": "torch.kthvalue(x, 2)",
    "lerp": "torch.lerp(x, y, 0.3)",
    "linalg.cross": "torch.linalg.cross(b.mT.permute(2, 0, 1).contiguous(), b.mT.permute(2, 0, 1) + 1, dim=1)",
    "linalg.diagonal": "torch.linalg.diagonal(b)",
    "linalg.eigh": "torch.linalg.eigh(d)[0]",
    "linalg.householder_product": "torch.linalg.householder_product(x.mT.contiguous(), v)",
    "linalg.lstsq": "torch.linalg.lstsq(d, x)[0]",
    "linalg.matrix_power": "torch.linalg.matrix_power(s, 3)",
    "linalg.multi_dot": "torch.linalg.multi_dot([x, z, x])",
    "linalg.qr": "torch.linalg.qr(d)",
    "linalg.solve": "torch.linalg.solve(d, x)",
    "linalg.solve_triangular": "torch.linalg.solve_triangular(d.tril(), x, upper=False)",
    "linalg.svd": "torch.linalg.svd(d)[1]",
    "linalg.tensorinv": "torch.linalg.tensorinv(d, ind=1)",
    "linalg.tensorsolve": "torch.linalg.tensorsolve(d, v)",
    "linalg.vander": "torch.linalg.vander(v, N=3)",
    "linalg.vecdot": "torch.linalg.vecdot(x, y)",
    "linalg.matrix_norm nuc": "torch.linalg.matrix_norm(d, 'nuc')",
    "logdet": "torch.logdet(d)",
    "logical_and": "torch.logical_and(m, x > 0)",
    "logical_not": "torch.logical_not(m)",
    "matmul": "x @ z",
    "matmul batch": "b @ e",
    "matmul vector": "s @ v",
    "matmul broadcast": "b @ e[0]",
    "meshgrid": "torch.meshgrid(v, u, indexing='ij')",
    "mm": "torch.mm(x, z)",
    "movedim": "torch.movedim(b, 0, -1)",
    "mv": "torch.mv(s, v)",
    "nan_to_num 2": "torch.nan_to_num(x / 0)",
    "narrow": "torch.narrow(x, 0, 1, x.shape[0] - 2)",
    "outer": "torch.outer(v, u)",
    "permute": "torch.permute(b, (2, 0, 1)) + 1",
    "pixel_shuffle": "F.pixel_shuffle(torch.cat([c, c[:, :1]], 1), 2)",
    "pixel_unshuffle": "F.pixel_unshuffle(F.interpolate(c, scale_factor=2), 2)",
    "polar": "torch.polar(p, x)",
    "polygamma": "torch.polygamma(1, p)",
    "quantile": "torch.quantile(x, 0.3)",
    "quantile of a dimension": "torch.quantile(x, 0.3, dim=1)",
    "nanquantile": "torch.nanquantile(x, 0.3, dim=1)",
    "ravel": "torch.ravel(x)",
    "renorm": "torch.renorm(x, 2, 0, 1.0)",
    "repeat": "x.repeat(2, 3)",
    "repeat_interleave": "torch.repeat_interleave(x, 2, dim=0)",
    "reshape": "x.reshape(-1)",
    "reshape split": "torch.cat([x, x]).reshape(2, -1, x.shape[1])",
    "view as": "x.view(x.shape[1], -1)",
    "roll": "torch.roll(x, 2, 0)",
    "roll all": "torch.roll(x, 1)",
    "rot90": "torch.rot90(x)",
    "searchsorted": "torch.searchsorted(v.sort()[0], x)",
    "select": "torch.select(x, 0, 1)",
    "select_scatter": "torch.select_scatter(x, x[0], 0, 1)",
    "slice_scatter": "torch.slice_scatter(x, x[:2], 0, 1, 3)",
    "split": "torch.split(x, x.shape[1] // 2, 1)[0]",
    "split sections": "torch.split(x, [1, x.shape[0] - 1])",
    "squeeze": "torch.squeeze(x[None])",
    "squeeze of a dimension": "torch.squeeze(x[None], 0)",
    "stack": "torch.stack([x, y])",
    "stft": "torch.stft(v.repeat(8), 16, return_complex=True).abs()",
    "sum to size": "x.sum_to_size(1, x.shape[1])",
    "swapaxes": "torch.swapaxes(x, 0, 1) + 1",
    "t": "x.t() + 1",
    "tensor_split": "torch.tensor_split(x, 2)",
    "tensordot": "torch.tensordot(x, y, dims=([0], [0]))",
    "tensordot 1": "torch.tensordot(x, z, dims=1)",
    "tile": "torch.tile(x, (2,))",
    "topk": "torch.topk(x, 2)",
    "trace": "torch.trace(s)",
    "transpose": "torch.transpose(b, 0, 2) + 1",
    "trapezoid": "torch.trapezoid(x)",
    "triangular_solve": "torch.triangular_solve(x, d.triu())[0]",
    "tril": "torch.tril(x)",
    "triu": "torch.triu(x, 1)",
    "unflatten": "torch.unflatten(torch.cat([x, x]), 0, (2, -1))",
    "unfold": "x.unfold(1, 3, 1)",
    "unsqueeze": "torch.unsqueeze(x, 1)",
    "vdot": "torch.vdot(v, u)",
    "view_as_complex": "torch.view_as_complex(torch.stack([x, y], -1)).abs()",
    "view_as_real": "torch.view_as_real(g)",
    "vsplit": "torch.vsplit(torch.cat([x, x]), 2)",
    "vstack": "torch.vstack([x, y])",
    "F.linear": "F.linear(x, y)",
    "F.bilinear": "F.bilinear(x, y, b[:, :, :1].permute(0, 2, 1).new_ones(3, x.shape[1], y.shape[1]))",
    "F.embedding": "F.embedding(i, x)",
    "F.embedding_bag": "F.embedding_bag(i, x)",
    "F.one_hot": "F.one_hot(j, x.shape[0])",
    "F.conv1d": "F.conv1d(t, w1)",
    "F.conv1d padding": "F.conv1d(t, w1, padding='same')",
    "F.conv2d": "F.conv2d(c, w2, stride=2, padding=1)",
    "F.conv3d": "F.conv3d(o, w3)",
    "F.conv_transpose1d": "F.conv_transpose1d(t, w1.transpose(0, 1))",
    "F.conv_transpose2d": "F.conv_transpose2d(c, r2, stride=2)",
    "F.max_pool1d": "F.max_pool1d(t, 2)",
    "F.max_pool2d": "F.max_pool2d(c, 2)",
    "F.max_pool2d ceil": "F.max_pool2d(c, 3, 2, ceil_mode=True)",
    "F.max_pool3d": "F.max_pool3d(o, 2)",
    "F.avg_pool1d": "F.avg_pool1d(t, 2)",
    "F.avg_pool2d": "F.avg_pool2d(c, 2, padding=1)",
    "F.avg_pool3d": "F.avg_pool3d(o, 2)",
    "F.lp_pool2d": "F.lp_pool2d(c, 2, 2)",
    "F.adaptive_avg_pool1d": "F.adaptive_avg_pool1d(t, 1)",
    "F.adaptive_avg_pool2d": "F.adaptive_avg_pool2d(c, (2, 3))",
    "F.adaptive_max_pool2d": "F.adaptive_max_pool2d(c, 2)",
    "F.fold": "F.fold(F.unfold(c, 2), c.shape[2:], 2)",
    "F.unfold": "F.unfold(c, 3)",
    "F.interpolate nearest": "F.interpolate(c, scale_factor=2)",
    "F.interpolate bilinear": "F.interpolate(c, size=(7, 8), mode='bilinear')",
    "F.interpolate bicubic": "F.interpolate(c, scale_factor=1.5, mode='bicubic')",
    "F.interpolate size": "F.interpolate(c, size=(c.shape[2] * 2, c.shape[3] + 1))",
    "F.grid_sample": "F.grid_sample(c, torch.stack([q, q], -1)[None].expand(2, *q.shape, 2))",
    "F.affine_grid": "F.affine_grid(r2[:2, :2, 0], c.shape)",
    "F.pad reflect": "F.pad(c, (1, 1, 2, 1), mode='reflect')",
    "F.pad replicate": "F.pad(c, (1, 1, 2, 1), mode='replicate')",
    "F.pad circular": "F.pad(c, (1, 1, 2, 1), mode='circular')",
    "F.batch_norm": "F.batch_norm(c, None, None, training=True)",
    "F.layer_norm": "F.layer_norm(x, x.shape[1:])",
    "F.group_norm": "F.group_norm(t, 3)",
    "F.instance_norm": "F.instance_norm(c)",
    "F.rms_norm": "F.rms_norm(x, x.shape[1:])",
    "F.local_response_norm": "F.local_response_norm(c, 2)",
    "F.normalize": "F.normalize(x)",
    "F.softmax": "F.softmax(x, -1)",
    "F.softmin": "F.softmin(x, 0)",
    "F.cosine_similarity": "F.cosine_similarity(x, y)",
    "F.pairwise_distance": "F.pairwise_distance(x, y)",
    "F.pdist": "F.pdist(x)",
    "F.cross_entropy": "F.cross_entropy(s, j)",
    "F.cross_entropy smooth": "F.cross_entropy(s, j, label_smoothing=0.1)",
    "F.cross_entropy probabilities": "F.cross_entropy(x, q)",
    "F.nll_loss": "F.nll_loss(s, j)",
    "F.mse_loss": "F.mse_loss(x, y)",
    "F.l1_loss": "F.l1_loss(x, y)",
    "F.smooth_l1_loss": "F.smooth_l1_loss(x, y)",
    "F.huber_loss": "F.huber_loss(x, y)",
    "F.kl_div": "F.kl_div(x, q, reduction='batchmean')",
    "F.binary_cross_entropy": "F.binary_cross_entropy(q, m.float())",
    "F.binary_cross_entropy_with_logits": "F.binary_cross_entropy_with_logits(x, q)",
    "F.cosine_embedding_loss": "F.cosine_embedding_loss(x, y, v.sign())",
    "F.hinge_embedding_loss": "F.hinge_embedding_loss(x, y.sign())",
    "F.margin_ranking_loss": "F.margin_ranking_loss(v, u, v.sign())",
    "F.multi_margin_loss": "F.multi_margin_loss(s, j)",
    "F.multilabel_margin_loss": "F.multilabel_margin_loss(x, i)",
    "F.multilabel_soft_margin_loss": "F.multilabel_soft_margin_loss(x, q)",
    "F.triplet_margin_loss": "F.triplet_margin_loss(x, y, p)",
    "F.poisson_nll_loss": "F.poisson_nll_loss(x, p)",
    "F.soft_margin_loss": "F.soft_margin_loss(x, y.sign())",
    "F.scaled_dot_product_attention": "F.scaled_dot_product_attention(h, h, h)",
    "F.scaled_dot_product_attention causal": "F.scaled_dot_product_attention(h, h, h, is_causal=True)",
    "F.channel_shuffle": "F.channel_shuffle(torch.cat([c, c], 1), 2)",
    "F.dropout": "F.dropout(x, 0.5, training=False)",
    "F.alpha_dropout": "F.alpha_dropout(x, 0.5, training=False)",
    "F.logsigmoid": "F.logsigmoid(x)",
    "F.gumbel_softmax": "F.gumbel_softmax(x, hard=False).sum(-1)",
    "operator.index": "x * operator.index(x.shape[0])",
    "operator.index after a condition": "x * (operator.index(x.shape[0]) if x.shape[0] > 1 and x.shape[1] > 2 else 1)",
    "float of a size": "x / float(x.shape[0])",
    "int of a size": "x[: int(x.shape[0] / 2)]",
    "range of a size": "sum(x[i] for i in range(2)) + len(x)",
    "numel": "x / x.numel()",
    "size of shape": "x.new_ones(torch.Size([x.shape[0], 2])).sum() + x",
    "min of sizes": "x[: min(x.shape)] + max(x.shape)",
    "divmod of sizes": "x * divmod(x.shape[1], 2)[0]",
    "as_strided": "torch.as_strided(x, (x.shape[0], 2), (x.stride(0), 1))",
    "unbind sizes": "x.view(*x.shape, 1) + 0",
    "tensor of a size": "x * torch.tensor(x.shape[0])",
    "F.max_unpool2d": "F.max_unpool2d(*F.max_pool2d(c, 2, return_indices=True), 2, output_size=c.shape[2:])",
    "tensor of sizes": "torch.tensor(x.shape) + 1",
    "format of a size": "x + len(f'{x.shape[0] > 2}')",
    "cumulative": "torch.cumsum(x, 0) / torch.arange(1, x.shape[0] + 1)[:, None]",
    "nonfinite": "torch.isfinite(x).all()",
    "unravel_index": "torch.unravel_index(j, (x.shape[0], 2))",
    "lu_solve": "torch.lu_solve(x, *torch.linalg.lu_factor(d))",
    "lu_unpack": "torch.lu_unpack(*torch.linalg.lu_factor(d))",
    "orgqr": "torch.orgqr(z, v)",
    "geqrf": "torch.geqrf(z)",
    "matrix_exp": "torch.matrix_exp(s * 0.1)",
    "frexp": "torch.frexp(x)",
    "ldexp": "torch.ldexp(x, w)",
    "gcd": "torch.gcd(w, w + 2)",
    "lcm": "torch.lcm(w, w + 2)",
    "cummax then gather": "x.gather(1, x.cummax(1)[1])",
    "addmm beta": "torch.addmm(x, s, x, beta=0.5, alpha=2)",
    "gated": "F.silu(x) * torch.sigmoid(y)",
}  # fmt: skip

CALLS |= {
    "where of a size": "torch.where(m, x, x.shape[0]) + torch.where(m, v.shape[0], x)",
    "where method of a size": "x.where(m, x.shape[1])",
    "where of an index and a size": "torch.where(i > 2, i, x.shape[0] - 1)",
    "setitem of a size": "operator.setitem(c := x.clone(), slice(1, None), x.shape[0]) or c",
    "setitem of a size everywhere": "operator.setitem(c := x.clone(), Ellipsis, x.shape[0]) or c",
    "linspace to a size": "torch.linspace(-1, x.shape[0], x.shape[1])",
    "tensor_split in three": "torch.tensor_split(x, 3)[1].sum(0) + x.tensor_split(3, 0)[2].sum(0)",
    "roll of channels last": "c.to(memory_format=torch.channels_last).roll(1, 2)",
    "floor of a fraction": "x * math.floor(x.shape[0] * 0.75) + int(x.shape[1] / 2)",
    "low bits of a size": "x * (x.shape[0] & 3) + round(x.shape[1] / 4)",
}


def function_of(expression):
    """The expression as a function of the tensors that it names, and their names."""
    import math
    import operator
    import re

    known = inputs(4)
    names = [name for name in known if re.search(rf"(?<![\w.'])\b{name}\b(?!\s*=[^=])", expression)]
    scope = {"torch": torch, "F": F, "math": math, "operator": operator}
    exec(f"def program({', '.join(names)}):\n    return {expression}\n", scope)
    return scope["program"], names


PINNED = {
    "linalg.matrix_rank": "C++ makes a tolerance of the sizes",
    "fftfreq": "the operator takes a number",
    "logspace": "the operator takes a number",
    "tri indices": "the operator takes numbers",
    "triu indices": "the operator takes numbers",
    **{f"{kind}_window": "the operator takes a number"
       for kind in ("hamming", "hann", "bartlett", "blackman", "kaiser")},
    "F.embedding_bag": "the number of bags is asked for as a number",
    "F.interpolate bicubic": "a size from a factor is rounded in C++",
    "unravel_index": "torch's Python makes a tensor of the shape's products",
}  # fmt: skip
"""Calls that are compiled once for each size, or break: what pins the size."""
if torch.__version__ < (2, 13):  # 2.11 measured
    PINNED["F.cross_entropy probabilities"] = "C++ of this torch reads sizes as numbers"
