"""ResNet-50 in plain `torch.nn`, compiled: a convolutional network without torchvision.

    python examples/resnet50.py

The demo uses it too: `compile-api demo --model resnet50`.
"""

import torch
from torch import Tensor, nn


class Bottleneck(nn.Module):
    """1x1 to `width`, 3x3, 1x1 to four times `width`, around a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.reduce = nn.Conv2d(channels, width, 1, bias=False)
        self.reduce_norm = nn.BatchNorm2d(width)
        self.spatial = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.spatial_norm = nn.BatchNorm2d(width)
        self.expand = nn.Conv2d(width, out, 1, bias=False)
        self.expand_norm = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, h, w) -> (n, 4 * width, h / stride, w / stride)."""
        y = self.relu(self.reduce_norm(self.reduce(x)))
        y = self.relu(self.spatial_norm(self.spatial(y)))
        y = self.expand_norm(self.expand(y))
        y += self.shortcut(x)
        return self.relu(y)


class ResNet50(nn.Module):
    """The 50-layer residual network for images of about 224 x 224; fewer `blocks`, a smaller `width`: for tests."""

    def __init__(
        self, classes: int = 1000, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.stem_norm = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        stages = []
        channels = width
        for number, count in enumerate(blocks):
            stage = []
            for block in range(count):
                stride = 2 if number > 0 and block == 0 else 1
                stage.append(Bottleneck(channels, width << number, stride))
                channels = 4 * width << number
            stages.append(nn.Sequential(*stage))
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) -> (n, classes)."""
        x = self.pool(self.relu(self.stem_norm(self.stem(images))))
        x = self.stages(x)
        return self.classifier(x.mean(dim=(2, 3)))


def main() -> None:
    """Compiles the network and compares it with eager on one image."""
    import compile_api

    torch.manual_seed(0)
    model = ResNet50().eval()
    image = torch.randn(1, 3, 224, 224)
    compiled = compile_api.compile(model)
    with torch.no_grad():
        expected = model(image)
        actual = compiled(image)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
    print(f"{compile_api.graph_count()} graph, output {tuple(actual.shape)}, as eager")


if __name__ == "__main__":
    main()
