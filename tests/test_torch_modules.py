"""PyTorch modules: ``ee.optimize`` of a module, and the backend ``einnet`` of ``torch.compile``."""

import tomllib
import warnings
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import einnet_explore as ee

PROJECT = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text())["project"]


def test_the_entry_point_names_the_backend() -> None:
    module, _, name = PROJECT["entry-points"]["torch_dynamo_backends"]["einnet"].partition(":")
    assert callable(getattr(import_module(module), name))


torch = pytest.importorskip("torch", reason="the extra torch is not installed")
pytest.importorskip("onnxscript", reason="the extra torch is not installed")

from torch import nn  # noqa: E402

from einnet_explore.pipeline import torch_modules  # noqa: E402


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 48)

    def forward(self, x: Any) -> Any:
        q, k, v = self.project(x).chunk(3, dim=-1)
        return torch.softmax(q @ k.transpose(-1, -2) / 4, dim=-1) @ v


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())

    def forward(self, x: Any) -> Any:
        return x + self.inner(x)


class TwoResults(nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x @ y, (x + 1).sum(dim=1)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(10, 8), nn.LayerNorm(8)

    def forward(self, ids: Any) -> Any:
        return self.norm(self.embed(ids)).mean(dim=1)


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], tuple[Any, ...]]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), lambda: (torch.randn(3, 8),)),
    "convolution": (lambda: nn.Conv2d(3, 5, 3, stride=2, padding=1), lambda: (torch.randn(1, 3, 9, 9),)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 5, 4, stride=2, padding=1), lambda: (torch.randn(1, 3, 5, 5),)),
    "pooled": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten()),
        lambda: (torch.randn(2, 3, 6, 6),),
    ),
    "residual": (Residual, lambda: (torch.randn(1, 4, 6, 6),)),
    "attention": (Attention, lambda: (torch.randn(1, 12, 16),)),
    "two results": (TwoResults, lambda: (torch.randn(4, 5), torch.randn(5, 3))),
    "words": (Words, lambda: (torch.randint(0, 10, (2, 5)),)),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterable[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    torch._dynamo.reset()


@pytest.mark.parametrize("name", MODELS)
def test_module_and_compiled_module_agree_with_eager_execution(name: str) -> None:
    make, draw = MODELS[name]
    module, given = make().eval(), draw()
    with torch.no_grad():
        expected = module(*given)
        expected = expected if isinstance(expected, tuple) else (expected,)
        fast = ee.optimize(module, given, threads=1, budget=1)
        names = [value.name for value in fast.model.inputs]
        outputs = fast(**dict(zip(names, map(np.asarray, given), strict=True)))
        compiled = torch.compile(module, backend=torch_modules.compile_graph, options={"threads": 1, "budget": 1})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a plan that is not faster runs eagerly
            found = compiled(*given)
        found = found if isinstance(found, tuple) else (found,)
    for one, other, third in zip(expected, outputs.values(), found, strict=True):
        np.testing.assert_allclose(other, one.numpy(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(third, one, rtol=1e-4, atol=1e-5)


def test_a_changed_weight_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_modules.GraphPlan, "require_gain", lambda *_: None)
    module, x = nn.Linear(8, 4).eval(), torch.randn(3, 8)
    compiled = torch.compile(module, backend=torch_modules.compile_graph, options={"threads": 1, "budget": 0.1})
    runs = []
    run = torch_modules.GraphPlan._run
    monkeypatch.setattr(torch_modules.GraphPlan, "_run", lambda *given: runs.append(1) or run(*given))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
        assert runs == [1]
        module.bias.add_(1)
        torch.testing.assert_close(compiled(x), module(x))
        assert runs == [1]


@pytest.mark.parametrize(
    ("module", "given", "why"),
    [
        (nn.Linear(8, 4), lambda: torch.randn(3, 8), "a tensor that needs a gradient"),
        (nn.Identity(), lambda: torch.randn(3, device="meta"), "a tensor on meta, expected the CPU"),
    ],
)
def test_graphs_that_are_not_compiled_run_eagerly_with_a_reason(module: Any, given: Any, why: str) -> None:
    x = given()

    def double(x: Any) -> Any:
        return module(x) * 2

    with pytest.warns(UserWarning, match=why):
        found = torch.compile(double, backend=torch_modules.compile_graph)(x)
    assert found.shape == double(x).shape


def test_slower_plans_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        median = 2.0

    class Fast:
        median = 1.0

    monkeypatch.setattr(torch_modules, "time_calls", lambda *_, **__: {"eager": Fast, "plan": Slow})
    compiled = torch.compile(
        nn.Linear(8, 4), backend=torch_modules.compile_graph, options={"threads": 1, "budget": 0.1}
    )
    with torch.no_grad(), pytest.warns(UserWarning, match="the plan takes 2000000 µs, eager execution 1000000 µs"):
        compiled(torch.randn(3, 8))


def test_a_module_that_torch_cannot_export_is_refused() -> None:
    class Random(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + np.random.default_rng(0).normal() if float(x.sum()) > 0 else x

    with pytest.raises(ee.Refused, match="Random: torch cannot export it: "):
        ee.optimize(Random(), (torch.randn(3),))


def test_modules_are_compared_with_each_other_and_with_their_files(tmp_path: Path) -> None:
    module, x = Attention().eval(), torch.randn(2, 5, 16)
    onnx.save(torch_modules.export_module(module, (x,)), tmp_path / "a.onnx")
    assert ee.equal(module, tmp_path / "a.onnx", example_inputs=(x,)).kind == "proved"
    other = Attention().eval()
    assert ee.equal(module, other, example_inputs=(x,)).kind == "different"
    other.load_state_dict(module.state_dict())
    assert ee.equal(module, other, example_inputs=(x,)).kind == "proved"
    with pytest.raises(ValueError, match="Attention: found no example_inputs, expected a tuple of tensors"):
        ee.equal(module, other)
