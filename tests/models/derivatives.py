"""Models whose forward takes derivatives: of a network by its inputs, once and twice, of an energy by positions, of a
convolution by an image, and of a loss by weights, for all samples together and for each by itself."""

from collections.abc import Callable

import torch
from torch import Tensor, func, nn
from torch.autograd import grad
from torch.func import grad_and_value, hessian, vjp, vmap
from torch.nn.functional import conv2d, cross_entropy

Case = tuple[nn.Module, dict[str, Tensor], dict[str, tuple[str, ...]]]


class Residual(nn.Module):
    """The residual of a differential equation, u_xx + u_yy = u^3 (Raissi et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        u = self.net(x)
        (first,) = grad(u.sum(), x, create_graph=True)
        second = [grad(first[:, axis].sum(), x, create_graph=True)[0][:, axis] for axis in range(2)]
        return (sum(second) - u[:, 0] ** 3).square().mean()


class Curve(nn.Module):
    """All second derivatives of a function of one sample, for all samples at once, its slope and its values."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        def value(at: Tensor) -> Tensor:
            return self.net(at[None])[0, 0]

        second, (slope, values) = vmap(hessian(value))(x), vmap(grad_and_value(value))(x)
        back, pull = vjp(self.net, x)
        return (second.sum((1, 2)) - values**2).square().mean() + (slope - pull(torch.ones_like(back))[0] * 2).mean()


class Forces(nn.Module):
    """An energy of pairs of atoms, and forces as its derivative by their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(5, 4)
        self.net = nn.Sequential(nn.Linear(9, 8), nn.SiLU(), nn.LayerNorm(8), nn.Linear(8, 1))

    def forward(self, kind: Tensor, at: Tensor, force: Tensor) -> Tensor:
        with torch.enable_grad():
            at.requires_grad_(True)
            away = ((at[:, :, None] - at[:, None]).square().sum(-1, keepdim=True) + 0.1).sqrt()
            atoms, n = self.kinds(kind), kind.shape[1]
            pairs = [atoms[:, :, None].expand(-1, -1, n, -1), atoms[:, None].expand(-1, n, -1, -1), away]
            energy = self.net(torch.cat(pairs, -1)).sum((1, 2, 3))
        slope = grad(energy, at, grad_outputs=torch.ones_like(energy), create_graph=True, retain_graph=True)[0]
        return (slope + force).square().mean() + 0.01 * energy.mean()


class Penalty(nn.Module):
    """A critic of images whose slope shall be one (Gulrajani et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        first, second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2, padding=1)
        self.net = nn.Sequential(first, nn.LeakyReLU(0.2), second, nn.Softplus(), nn.Flatten(), nn.Linear(36, 1))

    def forward(self, image: Tensor) -> Tensor:
        image = image.requires_grad_(True)
        slope = func.grad(lambda seen: self.net(seen).sum())(image)
        return self.net(image).mean() + (slope.flatten(1).norm(2, 1) - 1).square().mean()


class Inner(nn.Module):
    """Two steps of gradient descent, and the loss behind them (Finn et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(4, 1, 3, 3)), nn.Parameter(torch.randn(4, 2))

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        weights = self.first, self.second
        for _ in range(2):
            slopes = grad(_loss(x, label, *weights), weights, create_graph=True)
            weights = weights[0] - 0.1 * slopes[0], weights[1] - 0.1 * slopes[1]
        return _loss(x, label, *weights)


def _loss(x: Tensor, label: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return cross_entropy(conv2d(x, first, stride=2, padding=1).tanh().mean((2, 3)) @ second, label)


class Tasks(nn.Module):
    """A step of gradient descent for each task, and the loss behind it (Finn et al. 2017); of a map in a map, slopes of
    each row of a task."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        weights = dict(self.net.named_parameters())

        def loss(given: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return (func.functional_call(self.net, given, (x,)) - y).square().mean()

        def behind(x: Tensor, y: Tensor) -> Tensor:
            slopes, first = grad_and_value(loss)(weights, x, y)
            return loss({name: weight - 0.1 * slopes[name] for name, weight in weights.items()}, x, y) + first

        of_rows = vmap(vmap(func.grad(loss), (None, 0, 0)), (None, 0, 0))(weights, x, y)
        return vmap(behind)(x, y).mean() + sum(slope.square().mean() for slope in of_rows.values())


class Attack(nn.Module):
    """Inputs that are moved up the loss, by a derivative through which no gradient flows; `unused` has none."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        x, unused = x.detach().requires_grad_(), x.new_ones(()).requires_grad_()
        loss = cross_entropy(self.net(x), label)
        slope, _ = grad(loss, (x, unused), retain_graph=True, allow_unused=True)
        return loss + cross_entropy(self.net(x + 0.1 * slope.sign()), label)


def _of(module: type[nn.Module], inputs: Callable[[], dict[str, Tensor]], *axes: tuple[str, ...]) -> Callable[[], Case]:
    def case() -> Case:
        torch.manual_seed(0)
        batch = inputs()
        return module(), batch, dict(zip(batch, axes, strict=True))

    return case


curve = _of(Curve, lambda: {"x": torch.rand(8, 2)}, ("batch", "space"))
residual = _of(Residual, lambda: {"x": torch.rand(8, 2)}, ("batch", "space"))
forces = _of(
    Forces,
    lambda: {"kind": torch.randint(5, (4, 6)), "at": torch.randn(4, 6, 3), "force": torch.randn(4, 6, 3)},
    ("batch", "atoms"),
    ("batch", "atoms", "space"),
    ("batch", "atoms", "space"),
)
penalty = _of(Penalty, lambda: {"image": torch.randn(4, 1, 6, 6)}, ("batch", "channel", "height", "width"))
inner = _of(
    Inner,
    lambda: {"x": torch.randn(8, 1, 6, 6), "label": torch.randint(2, (8,))},
    ("batch", "channel", "height", "width"),
    ("batch",),
)
tasks = _of(
    Tasks,
    lambda: {"x": torch.randn(4, 6, 2), "y": torch.randn(4, 6, 1)},
    ("batch", "shot", "in"),
    ("batch", "shot", "out"),
)
attack = _of(Attack, lambda: {"x": torch.randn(8, 4), "label": torch.randint(3, (8,))}, ("batch", "in"), ("batch",))
