"""The models in torch, eager and compiled, from the text in the bundle; imported only if torch is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

Call = Callable[[], Any]

COMPILE_MODE, TUNED = "default", "max-autotune-no-cudagraphs"
"""Modes of ``torch.compile``; the second one times variants of products, which takes seconds a kernel.

Streams of memory have little to tune, the convolutions of models are cuDNN's in every mode, and the runner makes graphs
itself.  Attention is tuned last, after it was measured as it is.
"""


def module(torch: Any, told: Mapping[str, Any], weights: Mapping[str, Any], device: str = "cuda") -> Any:
    """A module whose parameters are *weights*, and whose ``forward`` takes the model's inputs.

    *weights* are arrays of NumPy or CuPy by value.  *told* holds the function's text and what its arguments are.
    Raises ValueError for a text that is no function.
    """
    names: list[str] = list(told["arguments"])
    scope: dict[str, Any] = {"torch": torch, "device": torch.device, "inf": float("inf"), "nan": float("nan")}
    exec(compile(told["text"], "model", "exec"), scope)
    function = scope.get("forward")
    if function is None:
        raise ValueError(f"found no function forward in the text of a model, which begins {told['text'][:40]!r}")

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            for n, name in enumerate(names):
                if name in weights:
                    tensor = torch.from_dlpack(weights[name].copy()).to(device)
                    if tensor.is_floating_point():
                        self.register_parameter(f"w{n}", torch.nn.Parameter(tensor, requires_grad=False))
                    else:
                        self.register_buffer(f"w{n}", tensor)

        def forward(self, *inputs: Any) -> Any:
            rest = list(inputs)
            return function(None, *[getattr(self, f"w{n}") if name in weights else rest.pop(0)
                                    for n, name in enumerate(names)])  # fmt: skip

    return Model().eval()


def variants(torch: Any, built: Any, feeds: list[Any]) -> dict[str, tuple[Any, list[Any]]]:
    """Return the module and its inputs by memory format; channels last only for images."""
    import copy

    found = {"torch": (built, feeds)}
    if any(p.dim() == 4 for p in built.parameters()):
        last = copy.deepcopy(built).to(memory_format=torch.channels_last)
        other = [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in feeds]
        found["torch, channels last"] = last, other
    return found


def calls(torch: Any, built: Any, feeds: list[Any]) -> dict[str, Call]:
    """Eager calls by memory format; each gives its first output."""

    def call(made: Any, given: list[Any]) -> Call:
        def run() -> Any:
            with torch.inference_mode():
                return made(*given)[0]

        return run

    return {name: call(*pair) for name, pair in variants(torch, built, feeds).items()}


def compiled(torch: Any, built: Any, feeds: list[Any]) -> dict[str, Call]:
    """Calls compiled by Inductor, tuned; the runner makes graphs of them, so Inductor's own are off."""
    found: dict[str, Call] = {}
    torch.compiler.reset()  # beyond eight recompilations of a function torch runs it uncompiled, and does not say so
    for name, (made, given) in variants(torch, built, feeds).items():
        quick = torch.compile(made, mode=COMPILE_MODE, dynamic=False)

        def run(quick: Any = quick, given: list[Any] = given) -> Any:
            with torch.no_grad():
                return quick(*given)[0]

        found[name.replace("torch", "torch.compile")] = run
    return found


@contextmanager
def products_in(torch: Any | None, precision: str) -> Iterable[None]:  # type: ignore[misc]
    """Products of torch, where it is installed, are in *precision* (float32 or TF32) inside, and in float32 after."""
    if torch is not None:
        precise(torch, precision)
    try:
        yield
    finally:
        if torch is not None:
            precise(torch, "float32")


def precise(torch: Any, precision: str) -> None:
    """Set the precision of torch's products: float32 or TF32."""
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    torch.backends.cudnn.benchmark = True  # the library's best algorithm is what is to be beaten
