"""Lines of the random programs of `sized.py`, by kind, with the weight of each kind.

`{a}` and `{b}` stand for tensors of which the newest are likelier, `{x}` for an argument, `{d}` and `{e}` for
dimensions, `{i}` and `{j}` for numbers (sizes and what was made of them), `{t}` for the program's dtype, `{s}` for a
statement. `v` in a statement is the new tensor's name.
"""

VIEWS = """
{a}.reshape(-1)
{a}.reshape({a}.shape[0], -1)
{a}.view({a}.size(0), -1)
{a}.reshape(-1, {a}.size(-1))
{a}.view(-1, 2)
{a}.flatten({d})
{a}.flatten(0, 1)
{a}.transpose({d}, {e})
{a}.mT
{a}.t()
{a}.movedim({d}, {e})
{a}.unsqueeze({d})
{a}.squeeze({d})
{a}.squeeze()
{a}[:{i}]
{a}[-{i}:]
{a}[..., {i}:]
{a}[..., :-{i}]
{a}[{i}:, ...]
{a}[:, :{a}.size(1) // 2]
{a}[::2]
{a}[..., 1::2]
{a}[{i} % max({a}.size(0), 1)]
{a}[-1]
{a}[:, None]
{a}[..., 0]
{a}.narrow({d}, 0, {a}.size({d}) // 2)
{a}.narrow({d}, {a}.size({d}) // 3, {a}.size({d}) // 2)
{a}.select({d}, {a}.size({d}) - 1)
{a}.unfold({d}, 2, 1)
{a}.unfold({d}, max({a}.size({d}) // 2, 1), 1)
{a}.chunk(2, {d})[0]
{a}.chunk(3, {d})[-1]
{a}.split(max({i}, 1), {d})[-1]
{a}.split(2, {d})[0]
{a}.split([{a}.size({d}) // 2, {a}.size({d}) - {a}.size({d}) // 2], {d})[1]
{a}.tensor_split(3, {d})[1]
{a}.unbind({d})[0]
{a}.expand(2, *{a}.shape)
{a}.expand({i}, *{a}.shape)
{a}.unsqueeze({d}).expand_as({a}.unsqueeze({d}))
{a}.diagonal()
{a}.diagonal(1, {d}, {e})
{a}.unflatten(0, (-1, 1))
{a}.as_strided(({a}.size(0), 2), (1, 1))
{a}.as_strided(({a}.numel() // 2,), (2,))
{a}.contiguous()
{a}.view_as({a})
{a}.permute(*range({a}.dim())[::-1])
torch.broadcast_to({a}, (3, *{a}.shape))
{a}.detach()
"""
LAYING = """
{a}.contiguous(memory_format=torch.channels_last)
{a}.to(memory_format=torch.channels_last)
{a}.clone(memory_format=torch.contiguous_format)
{a}.clone()
torch.empty_like({a}).fill_(1.5)
torch.zeros_like({a}, memory_format=torch.contiguous_format)
{a}.new_zeros({a}.shape)
{a}.to(torch.float32)
{a}.repeat(2, *[1] * ({a}.dim() - 1))
{a}.repeat_interleave(2, {d})
{a}.tile(2)
{a}.roll({i}, {d})
{a}.flip({d})
{a}.rot90()
torch.tril({a}, {i})
torch.triu({a})
"""
JOINED = """
torch.cat([{a}, {b}], {d})
torch.cat([{a}, {a}[:1]])
torch.cat([{a}, {a}.new_zeros(2, *{a}.shape[1:])])
torch.cat([{a}[1:], {a}[:1]])
torch.stack([{a}, {b}], {d})
torch.stack([{a}, {a} * 2], -1)
torch.stack({a}.unbind(0)[:2])
torch.hstack([{a}, {b}])
torch.cat({a}.chunk(2, {d})[::-1], {d})
torch.cat([part * number for number, part in enumerate({a}.split(3, {d}))], {d})
torch.cat([{a}, {a}.new_ones(0)], 0)
"""
POINTWISE = """
torch.sin({a})
{a} + {b}
{a} * {b}
{a} - {b} * 0.5
{a} * {i}
{a} / max({i}, 1)
{a} + {i}
torch.where({a} > {b}, {a}, {b})
torch.where({a} > 0, {a}, {i})
torch.add({a}, {b}, alpha={i})
{a} / math.sqrt({a}.size(-1) + 1)
{a} * (1 / ({a}.size({d}) + 1))
{a}.clamp(-1, max({i}, 1))
torch.maximum({a}, {b})
torch.lerp({a}, {b}, 0.3)
torch.sigmoid({a})
F.gelu({a})
F.relu({a})
{a} ** 2
{a}.abs().sqrt()
{a} - {a}.mean({d}, keepdim=True)
{a} / ({a}.abs().amax({d}, keepdim=True) + 1)
{a}[1:] - {a}[:-1]
{a} + {a}.flip({d})
{a} + {a}.mT
{a}.unsqueeze(-1) - {a}.unsqueeze(-2)
torch.softmax({a}, {d})
F.log_softmax({a}, {d})
F.dropout({a}, 0.5, training=False)
F.layer_norm({a}, {a}.shape[-1:])
F.normalize({a}, dim={d})
{a}.masked_fill({a} > {i}, 0.5)
({a} > 0).to({a}.dtype)
F.glu(torch.cat([{a}, {a}], {d}), {d})
"""
REDUCED = """
{a}.sum({d})
{a}.sum({d}, keepdim=True)
{a}.mean({d})
{a}.sum()
{a}.mean()
{a}.sum((0, -1))
{a}.sum((0, -1), keepdim=True)
{a}.amax({d})
{a}.amax({d}, keepdim=True)
{a}.max({d})[0]
{a}.max()
{a}.var({d})
{a}.std({d}, keepdim=True)
{a}.var({d}, correction=0)
{a}.logsumexp({d})
{a}.cumsum({d})
{a}.cumprod({d}).clamp(-9, 9)
{a}.norm(dim={d})
{a}.prod({d}).clamp(-9, 9)
{a}.argmax({d}).to({a}.dtype)
{a}.sort({d})[0]
{a}.topk(min(2, {a}.size({d})), {d})[0]
{a}.topk({a}.size({d}) // 2, {d})[0]
{a}.median({d})[0]
{a}.sum({d}) / {a}.size({d})
torch.cdist({a}, {a}).clamp(max=9)
{a}.diff(dim={d})
({a} > 0).any({d}).to({a}.dtype)
({a} > 0).sum({d})
torch.std_mean({a}, {d})[1]
"""
PRODUCTS = """
{a} @ {a}.mT
{a}.mT @ {a}
{a} @ {b}
{a}.mT @ {b}
{a} @ {b}.mT
torch.matmul({a}, {b})
torch.bmm({a}, {a}.transpose(1, 2))
torch.outer({a}.flatten(), {b}.flatten()[:3])
torch.einsum('...i,...j->...ij', {a}, {a})
torch.einsum('ij,kj->ik', {a}, {b})
torch.einsum('bij,bkj->bik', {a}, {b})
torch.einsum('bchw,bcij->bhi', {a}, {a})
torch.tensordot({a}, {a}, ([{d}], [{d}]))
F.linear({a}, {a}.new_ones(3, {a}.size(-1)) * 0.1)
F.linear({a}.flatten(1), {a}.new_ones({i}, {a}.flatten(1).size(1)) * 0.1, {a}.new_ones({i}))
torch.addmm({b}, {a}, {a}.mT)
torch.baddbmm({a} @ {a}.mT, {a}, {a}.mT)
F.scaled_dot_product_attention({a}, {a}, {a})
{a} @ {a}[..., 0, :]
{a}.softmax(-1) @ {a}.mT.contiguous()
{a}.flatten(1) @ {a}.flatten(1).t()
"""
WINDOWS = """
F.avg_pool1d({a}, 2)
F.avg_pool1d({a}, max({a}.size(-1) // 2, 1), 1)
F.max_pool1d({a}, 2, 1)
F.avg_pool2d({a}, 2)
F.avg_pool2d({a}, ({a}.size(-2), {a}.size(-1)))
F.avg_pool2d({a}, 3, 2, 1)
F.max_pool2d({a}, 2)
F.max_pool2d({a}, 3, 1, 1)
F.max_pool2d({a}, 3, 2, 1, ceil_mode=True)
F.max_pool2d({a}, (max({a}.size(-2) // 2, 1), 1))
F.adaptive_avg_pool2d({a}, 1)
F.adaptive_avg_pool2d({a}, (({a}.size(-2) + 1) // 2, 3))
F.adaptive_max_pool2d({a}, 2)
F.adaptive_avg_pool1d({a}, max({i}, 1))
F.interpolate({a}, scale_factor=2)
F.interpolate({a}, scale_factor=0.5, mode='bilinear')
F.interpolate({a}, size=({a}.size(-2) + 1, {a}.size(-1) * 2), mode='bilinear', align_corners=True)
F.interpolate({a}, size=({i} + 1, 3), mode='nearest')
F.interpolate({a}, size={a}.size(-1) + 3, mode='linear')
F.interpolate({a}, size=({a}.size(-2) + 1, {i} + 1), mode='bicubic')
F.interpolate({a}, scale_factor=1.5, mode='area')
F.interpolate({a}, scale_factor=2, mode='trilinear')
F.pad({a}, (1, {i}))
F.pad({a}, (0, max(12 - {a}.size(-1), 0)))
F.pad({a}, ({i} % 2, 1, 2, 0), value=0.5)
F.pad({a}, (-1, 1))
F.pad({a}, (1, 1, 1, 1), mode='reflect')
F.pad({a}, (1, 2), mode='replicate')
F.pad({a}, (2, 1, 1, 2), mode='circular')
F.conv1d({a}, {a}.new_ones(2, {a}.size(1), 3) * 0.1, padding=1)
F.conv2d({a}, {a}.new_ones(4, {a}.size(1), 3, 3) * 0.1, padding=1)
F.conv2d({a}, {a}.new_ones(4, {a}.size(1), 3, 3) * 0.1, stride=2)
F.conv2d({a}, {a}.new_ones({a}.size(1), 1, 2, 2) * 0.1, groups={a}.size(1))
F.conv2d({a}, {a}.new_ones(5, {a}.size(1), 1, 1) * 0.1)
F.conv_transpose2d({a}, {a}.new_ones({a}.size(1), 2, 3, 3) * 0.1, stride=2)
F.conv3d({a}, {a}.new_ones(3, {a}.size(1), 2, 2, 2) * 0.1, padding=1)
F.avg_pool3d({a}, 2)
F.max_pool3d({a}, 2, 1)
F.unfold({a}, 2)
F.fold(F.unfold({a}, 2), {a}.shape[-2:], 2)
F.group_norm({a}, 1)
F.group_norm({a}, {a}.size(1))
F.batch_norm({a}, None, None, training=True)
F.instance_norm({a})
F.pixel_shuffle(F.pad({a}, (0, 0, 0, 0, 0, 4 - {a}.size(1))), 2)
F.channel_shuffle(torch.cat([{a}, {a}], 1), 2)
F.grid_sample({a}, {a}.new_zeros({a}.size(0), 3, {a}.size(-1), 2))
F.local_response_norm({a}, 3)
"""
CONSTANTS = """
torch.arange({i}, dtype={t})
torch.arange({a}.size({d}), dtype={t})
torch.arange({a}.size({d}), dtype={t}) * {a}.mean()
{a} + torch.arange({a}.size(-1), dtype={t})
{a} * torch.arange({a}.size(0), dtype={t}).view(-1, *[1] * ({a}.dim() - 1))
torch.arange(1, {i} + 3, 2, dtype={t})
torch.zeros({a}.shape, dtype={t}) + {i}
torch.ones({i}, {a}.size(0), dtype={t})
torch.full(({a}.size({d}), 2), {i}, dtype={t})
torch.full_like({a}, {i})
torch.linspace(0, 1, {i}, dtype={t})
torch.linspace(-1, {i}, {a}.size({d}), dtype={t})
torch.eye({i}, dtype={t})
torch.eye({a}.size(-1), dtype={t})
torch.tensor({i}, dtype={t})
torch.tensor([{i}, {a}.size(0)], dtype={t})
{a}.new_full((2, {i}), 0.5)
torch.ones({a}.size(-1), {a}.size(-1)).tril().to({t})
{a}.new_tensor([1.0, {i}])
torch.arange({i}) % 3
torch.scalar_tensor({i}, dtype={t})
torch.meshgrid(torch.arange({i}, dtype={t}), torch.arange({a}.size(0), dtype={t}), indexing='ij')[0]
"""
PICKED = """
{a}.index_select({d}, torch.arange({a}.size({d}) // 2))
{a}[torch.arange({a}.size(0) - 1, -1, -1)]
{a}[torch.arange({a}.size(0)) % max({i}, 1) % max({a}.size(0), 1)]
{a}[[0, -1]]
{a}[:, [0]]
{a}[torch.arange({a}.size(0)), torch.arange({a}.size(0)) % max({a}.size(1), 1)]
{a}.gather({d}, {a}.argsort({d}))
{a}.gather(-1, torch.zeros(*{a}.shape[:-1], 2, dtype=torch.long))
torch.take_along_dim({a}, {a}.argmin({d}, keepdim=True), {d})
{a}.index_add(0, torch.arange({a}.size(0)), {a})
{a}.scatter_add(0, torch.zeros({a}.shape, dtype=torch.long), {a})
{a}.index_fill({d}, torch.tensor([0]), 0.5)
{a}.take(torch.arange({a}.numel() // 2))
F.embedding(torch.arange({a}.size(0)) % 4, {a}.new_ones(4, 3))
F.one_hot(torch.arange({i}) % 3, 3).to({t})
torch.searchsorted({a}.flatten().sort()[0].detach(), {a}.detach()).to({t})
{a}.slice_scatter({a}[:1], 0, 0, 1)
{a}.select_scatter({a}[0], 0, -1)
"""
WRITTEN = """
{a}.clone().mul_({i})
{a}.clone().add_({b})
{a}.clone().zero_()
{a}.clone().transpose_(0, -1)
{a}.clone().unsqueeze_(0)
{a}.clone().masked_fill_({a} > 0, 0.25)
{a}.clone().index_copy_(0, torch.arange({a}.size(0)), {a}.flip(0))
"""
STATEMENTS = """
v = {a}.clone(); v[:{i}] = 0.5
v = {a}.clone(); v[..., 0] += 1
v = {a}.clone(); v[1:] = {a}[:-1]
v = {a}.clone(); v[-{i}:].mul_(2)
v = {a}.clone(); v.view(-1)[::2] = {i}
v = {a} * 1; v[{a} > 0] = 0
v = {a} * 1; v[torch.arange({a}.size(0) // 2)] = 0.25
v = {a} * 1; v.t().add_({a}.t())
v = {a}.new_empty({a}.shape); v.copy_({b})
v = {a}.new_zeros({a}.size(0), {i}); v[:, :1] = 1
v = {a}; v = v + sum(v.shape)
v = {a}.sum()\nfor part in {a}.split(4): v = v + part.mean()
v = [{a}[:, j] for j in range(2)][-1]
v, w = {a}.chunk(2, {d})
v, w = {a}.max({d})
v = {a}[:{a}.size(0) // 2 * 2].view(-1, 2, *{a}.shape[1:])
v = {a}.reshape(*{a}.shape[:-1], -1, 1)
"""
INPUT_WRITES = """
{x}.mul_(0.5)
{x}[:1] = 0.25
{x}.add_({i})
{x}[..., -1:].zero_()
{x}.copy_({x}.flip(0))
"""
NUMBERS = """
{a}.shape[0] // 2
{a}.size({d})
max({a}.size(0), {b}.size(-1))
min({a}.size(0), {i})
{a}.numel() % 3 + 1
{a}.numel() // max({a}.size(0), 1)
len({a})
{i} * 2 + 1
{i} - {j}
abs({i} - {j})
{i} // 2 + 1
({i} + 3) // 4
{i} % 3
int({i} / 2)
math.ceil({i} / 2)
round({i} * 0.5)
sum({a}.shape)
math.prod({a}.shape[:2])
math.floor({a}.size({d}) * 0.6)
{a}.stride(0)
{a}.storage_offset() + 1
-{i} + 5
{i} ** 2 % 7
max({i}, 2)
{a}.shape[-1] + {b}.shape[0]
{a}.dim()
{i} + k
divmod({i}, 3)[1]
int({i} * 1.5)
min([{i}, {j}, 4])
{i} >> 1
{i} & 3
1 << min({i}, 3)
int(math.sqrt({i} * {i} + 1))
{a}.element_size() * {i}
{a}.reshape(-1).shape[0]
sum(s for s in {a}.shape if s)
"""
BRANCHES = """
if {i} > 3: {s}
if {a}.size(0) % 2 == 0: {s}
if {a}.shape[0] == {b}.shape[0]: {s}
if {a}.is_contiguous(): {s}
if {i}: {s}
if {a}.numel() > 20 and {i} < 6: {s}
if {a}.size({d}) in (1, 5): {s}
while {i} < 3: {a} = {a} + 1; break
if {a}.shape == {b}.shape: {s}
if not {a}.numel(): {s}
if {a}.stride(-1) == 1: {s}
"""


def _templates(text):
    return [line.replace("\\n", "\n    ") for line in text.strip().split("\n")]


KINDS = {
    "views": (6, _templates(VIEWS)),
    "laying": (2, _templates(LAYING)),
    "joined": (2, _templates(JOINED)),
    "pointwise": (5, _templates(POINTWISE)),
    "reduced": (4, _templates(REDUCED)),
    "products": (2, _templates(PRODUCTS)),
    "windows": (3, _templates(WINDOWS)),
    "constants": (2, _templates(CONSTANTS)),
    "picked": (2, _templates(PICKED)),
    "written": (1, _templates(WRITTEN)),
    "statements": (2, _templates(STATEMENTS)),
    "input writes": (1, _templates(INPUT_WRITES)),
    "numbers": (4, _templates(NUMBERS)),
    "branches": (1, _templates(BRANCHES)),
}
