"""Display of counts, and colours that are legible on light and on dark paper."""

import re

import pytest

import einnet_explore as ee
from einnet_explore.equivalence.verdict import Certificate
from einnet_explore.session.explanations import Answer
from einnet_explore.support.wording import count_noun

WHITE, BLACK = (255,) * 3, (33,) * 3
PAPERS = {"white": (WHITE, BLACK), "black": ((17,) * 3, WHITE), "grey": (BLACK, (224,) * 3)}
"""Papers, among them those of JupyterLab's dark theme, and the ink on each."""

SHOWN = {
    **{kind: Certificate(kind, "evaluation")._repr_html_() for kind in ("proved", "exact", "false")},
    **{
        answer.verdict: answer._repr_mimebundle_()["text/html"]
        for answer in (Answer(1, "r", True, ""), Answer(1, "r", False, ""), Answer(1, "r", True, "", shown=True))
    },
}


def colour(html: str, ink: tuple[int, ...]) -> tuple[float, ...]:
    """The colour of the bold words of *html* where the words around are of *ink*."""
    found = re.search(r"#([0-9a-f]{6})(?: (\d+)%, currentColor)?", html)
    if found is None:
        assert "color" not in html
        return ink
    share = int(found[2] or 100) / 100
    hue = bytes.fromhex(found[1])
    return tuple(share * h + (1 - share) * i for h, i in zip(hue, ink, strict=True))


def luminance(rgb: tuple[float, ...]) -> float:
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (c / 255 for c in rgb)]
    return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Return the contrast ratio of the Web Content Accessibility Guidelines: 4.5 is sufficient for text of any size."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.parametrize("said", SHOWN)
def test_verdicts_can_be_read_on_light_and_on_dark_paper(said: str, paper: str) -> None:
    ground, ink = PAPERS[paper]
    assert contrast(colour(SHOWN[said], ink), ground) >= 4.5


def test_verdicts_have_distinct_colours() -> None:
    for ground, ink in PAPERS.values():
        inks = {tuple(map(round, colour(SHOWN[kind], ink))) for kind in ("proved", "exact", "false")}
        assert len(inks) == 3 and ground not in inks


def test_counts_have_the_right_plural() -> None:
    assert [count_noun(n, "step") for n in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]
    assert [count_noun(n, "guess", "guesses") for n in (1, 3)] == ["1 guess", "3 guesses"]
    run = ee.search(ee.parse("tensor A[3]\nY[i:3] = exp(A[i])"), max_depth=0)
    assert repr(run).startswith("<Run: 1 candidate, 2 states, ") and "1 of 1 candidate; 2 states, " in repr(run.table())
    (found,) = run.candidates
    assert ": 1 eOperator, 1 step, " in repr(found)
    assert repr(found.derivation).startswith("<Derivation of 1 step: ")
    assert str(Certificate("exact", "evaluation", elements=1)).endswith(
        "not proved, but equal on random inputs, 1 element compared"
    )
