"""The TIMM list: 62 names, their batch sizes and what makes each small enough for a CPU.

timm itself lives in an environment of its own. Small: fewer blocks of each kind where the model counts them
(each stage keeps at least one), the widths unchanged, batch 2, and an image of 64 x 64 pixels or the least that the
architecture takes. Convolutional networks whose blocks can't be counted are run at their full depth.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from benchmarks.models.subject import NotInstalled, Subject, call, loss_of_result, still, wake

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RENAMED", "TIMM", "build_image_model"]

_LIST = """
adv_inception_v3,128 beit_base_patch16_224,128 botnet26t_256,128 cait_m36_384,8 coat_lite_mini,128
convit_base,128 convmixer_768_32,64 convnext_base,128 crossvit_9_240,128 cspdarknet53,128
deit_base_distilled_patch16_224,128 dla102,128 dm_nfnet_f0,128 dpn107,64 eca_botnext26ts_256,128
eca_halonext26ts,128 ese_vovnet19b_dw,128 fbnetc_100,128 fbnetv3_b,128 gernet_l,128 ghostnet_100,128
gluon_inception_v3,128 gluon_xception65,64 gmixer_24_224,128 gmlp_s16_224,128 hrnet_w18,128
inception_v3,128 jx_nest_base,128 lcnet_050,128 levit_128,128 mixer_b16_224,128 mixnet_l,128
mnasnet_100,128 mobilenetv2_100,128 mobilenetv3_large_100,128 mobilevit_s,128 nfnet_l0,128 pit_b_224,128
pnasnet5large,32 poolformer_m36,128 regnety_002,128 repvgg_a2,128 res2net101_26w_4s,128
res2net50_14w_8s,128 res2next50,128 resmlp_12_224,128 resnest101e,128 rexnet_100,128
sebotnet33ts_256,128 selecsls42b,128 spnasnet_100,128 swin_base_patch4_window7_224,128
swsl_resnext101_32x16d,64 tf_efficientnet_b0,128 tf_mixnet_l,128 tinynet_a,128
tnt_s_patch16_224,128 twins_pcpvt_base,128 visformer_small,128 vit_base_patch16_224,128 volo_d1_224,128
xcit_large_24_p8_224,23
"""

TIMM: dict[str, int] = {
    name: int(batch) for name, batch in (entry.split(",") for entry in _LIST.split())
}

RENAMED: dict[str, tuple[str, str]] = {
    "adv_inception_v3": (
        "inception_v3",
        "adversarially trained weights of inception_v3: a tag today",
    ),
    "gluon_inception_v3": ("inception_v3", "GluonCV's weights of inception_v3: a tag today"),
    "gluon_xception65": ("xception65", "GluonCV's weights of xception65: a tag today"),
    "jx_nest_base": ("nest_base_jx", "renamed"),
    "swsl_resnext101_32x16d": ("resnext101_32x16d", "semi-weakly supervised weights: a tag today"),
}

BATCH = 2


@dataclass(frozen=True, slots=True)
class Small:
    """How a model is made small: the side of the image, and arguments of its constructor."""

    side: int = 64
    sized: bool = False  # the constructor must be told the image's side
    options: Mapping[str, Any] = field(default_factory=dict)
    cut: tuple[str, int] | None = None  # sequences that match this name keep so many blocks


def _blocks(depth: int = 2, side: int = 64, **more: Any) -> Small:
    return Small(side, sized=True, options={"depth": depth, **more})


SMALL: dict[str, Small] = {
    "adv_inception_v3": Small(128), "gluon_inception_v3": Small(128), "inception_v3": Small(128),
    "beit_base_patch16_224": _blocks(),
    "botnet26t_256": Small(128, sized=True), "eca_botnext26ts_256": Small(128, sized=True),
    "sebotnet33ts_256": Small(128, sized=True), "eca_halonext26ts": Small(256),
    "cait_m36_384": _blocks(),
    "coat_lite_mini": Small(64, sized=True),
    "convit_base": _blocks(3, local_up_to_layer=2),
    "convmixer_768_32": Small(cut=("blocks", 3)),
    "convnext_base": Small(options={"depths": (1, 1, 2, 1)}),
    "crossvit_9_240": Small(240),
    "deit_base_distilled_patch16_224": _blocks(), "vit_base_patch16_224": _blocks(),
    **{name: Small(64, sized=True, cut=("blocks", 2))
       for name in ("gmixer_24_224", "gmlp_s16_224", "mixer_b16_224", "resmlp_12_224")},
    "jx_nest_base": Small(64, sized=True, cut=("levels.*.transformer_encoder", 2)),
    "levit_128": Small(64, sized=True, options={"depth": (1, 1, 1)}),
    "pit_b_224": Small(64, sized=True, cut=("transformers.*.blocks", 2)),
    "pnasnet5large": Small(96),
    "poolformer_m36": Small(cut=("stages.*.blocks", 2)),
    "swin_base_patch4_window7_224": Small(112, sized=True, options={"depths": (2, 2, 2, 2)}),
    "tnt_s_patch16_224": _blocks(),
    "twins_pcpvt_base": Small(64, sized=True, options={"depths": (1, 1, 2, 1)}),
    "visformer_small": Small(64, sized=True, options={"depth": (1, 1, 1)}),
    "volo_d1_224": Small(64, sized=True, cut=("network.*", 2)),
    "xcit_large_24_p8_224": _blocks(),
    **{name: Small(options={"layers": (1, 1, 2, 1)})
       for name in ("res2net101_26w_4s", "res2net50_14w_8s", "res2next50", "resnest101e", "swsl_resnext101_32x16d")},
}  # fmt: skip


def _keep(module: nn.Module, pattern: str, count: int) -> None:
    """Shortens every `nn.Sequential` whose name matches."""
    for name, part in module.named_modules():
        if isinstance(part, nn.Sequential) and fnmatch.fnmatchcase(name, pattern):
            for child in list(part._modules)[count:]:
                del part._modules[child]


def build_image_model(name: str) -> Subject:
    """Builds the model by its living name, made small.

    Raises:
        NotInstalled: timm isn't in this environment.
    """
    try:
        import timm
    except ImportError as error:
        raise NotInstalled("timm isn't in this environment") from error
    living = RENAMED.get(name, (name, ""))[0]
    small = SMALL.get(name, Small())
    sized = {"img_size": small.side} if small.sized else {}
    module = timm.create_model(living, pretrained=False, num_classes=100, **sized, **small.options)
    if small.cut is not None:
        _keep(module, *small.cut)
    wake(module)

    def resize(batch: int, _length: int) -> dict[str, Any]:
        return {"image": torch.randn(batch, 3, small.side, small.side)}

    inputs = resize(BATCH, 0)
    return Subject(still(module), inputs, inputs, call, loss_of_result, resize=resize)
