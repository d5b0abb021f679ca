"""Equality of models, programs and families: at one choice of sizes, or at all.

For all sizes, two models are compared at one choice of sizes first.  Each pair of values that is proved there is
written as programs at further sizes; polynomials through their integers give schemas, and these are proved equal as the
steps of a family are.  One thing is tested, not proved: that the models' equations follow the schemas at every size.
It is tested at small and large sizes, and where an integer in a model may change the form of an operator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias

import onnx

from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Access, Program, Tensor
from einnet_explore.onnx_import.contrib_operators import expand_contrib_operators
from einnet_explore.onnx_import.input_domains import Domains
from einnet_explore.onnx_import.load import integers_of, load_model, read_proto
from einnet_explore.onnx_import.model import Model, Shape, with_domains
from einnet_explore.parametric.conjecture import Conjecture, conjecture, default_sizes, sizes_text
from einnet_explore.parametric.family import Family, family
from einnet_explore.parametric.parameters import FamilyParameters, Parameter
from einnet_explore.parametric.schema import Schema, instantiate_schema, literal_schema, schema_text
from einnet_explore.parametric.step_proofs import StepVerdict, judge_step, with_least_sizes
from einnet_explore.pipeline.folded_weights import constants_of, with_constants
from einnet_explore.pipeline.torch_modules import export_if_module
from einnet_explore.pipeline.value_proofs import ValuePair, are_one_graph, open_sweep
from einnet_explore.session.model_equality import SizesProof, Verdict, VerdictKind, compare_models, compare_programs
from einnet_explore.support.deprecation import renamed_argument
from einnet_explore.support.errors import Refused
from einnet_explore.support.limits import interrupt_after
from einnet_explore.syntax import parse
from einnet_explore.syntax.parser import text_of

if TYPE_CHECKING:
    import torch

File: TypeAlias = "str | PathLike[str] | bytes | onnx.ModelProto"
ModelLike: TypeAlias = "File | torch.nn.Module | Program | Family"
Dimension: TypeAlias = "int | str"
"""The size of a dimension, or the parameter that it is."""

NO_SHAPES: Mapping[str, Shape] = {}
NO_DOMAINS: Domains = {}


@renamed_argument("limit", "budget")
def equal(
    first: ModelLike,
    second: ModelLike,
    budget: float = 60.0,
    example_inputs: Sequence[object] = (),
    parts: bool = False,
    *,
    shapes: Mapping[str, Shape] = NO_SHAPES,
    all_sizes: bool = False,
    domains: Domains = NO_DOMAINS,
) -> Verdict:
    """Compare *first* with *second*: two ONNX models, two programs, or two families.

    Models are paths, bytes, protocol buffers or PyTorch modules.  A path that ends in ``.ein`` is that of a program, or
    of a family if it has ``param`` lines.  It takes at most *budget* seconds, and returns what is known then.  Modules
    are exported with the shapes of their *example_inputs*.  Inputs and outputs correspond by name, or by position if no
    name is common.  Operators of ONNX Runtime's optimiser are understood.  *parts*: prove which values are equal even
    if the models differ.

    *shapes* are those of dynamic inputs, by the first model's names.  *all_sizes*: prove the models equal at all sizes
    of their dynamic dimensions, from comparisons near *shapes*, or near small primes.  Families are compared at all
    sizes that both allow.  *domains* are those of inputs on which a difference is looked for, by the first model's
    names: ``{"mask": "0,1", "ids": "0..30521"}`` (default: normal numbers, integers 0 and 1).  A proof holds for all
    inputs.

    Raises ModelError for a file that is no model, Refused if the inputs or outputs do not fit, ValueError if the
    parameters of two families differ, or no sizes fulfil the assumptions of both.
    """
    start = perf_counter()
    given = (first, second)
    first, second = map(_read_text, given)
    if isinstance(first, Program | Family) and shapes:
        raise Refused(f"found shapes for {_kind(first)}, whose text has its sizes; expected none")
    if isinstance(first, Program | Family) and domains:
        raise Refused(f"found domains for {_kind(first)}, expected them for models only")
    if isinstance(first, Program) and isinstance(second, Program):
        if all_sizes:
            raise Refused("found two programs whose sizes are numbers, expected param lines for a proof for all sizes")
        return compare_programs(first, second, budget)
    if isinstance(first, Family) and isinstance(second, Family):
        return _compare_families(first, second, budget)
    if isinstance(first, Program | Family) or isinstance(second, Program | Family):
        files = [f" ({each})" if isinstance(each, str | PathLike) else "" for each in given]
        kinds = " and ".join(f"{_kind(of)}{file}" for of, file in zip((first, second), files, strict=True))
        raise Refused(f"found {kinds}, expected two programs, two families or two models")
    one, other = export_if_module(first, example_inputs), export_if_module(second, example_inputs)
    if all_sizes:
        return _compare_at_all_sizes(one, other, shapes, domains, budget, parts)
    models = _load(one, other, shapes, domains)
    sizes = {n: size for each, model in zip((one, other), models, strict=True) for n, size in _sizes_of(each, model)}
    verdict = compare_models(*models, start + budget - perf_counter(), parts)
    return replace(verdict, sizes=tuple(sizes.items()))


PARAMETERS = re.compile(r"^\s*param\b", re.MULTILINE)
"""The line that only texts of families have."""


def _read_text(given: ModelLike) -> ModelLike:
    """Return the program or the family in a file with the suffix ``.ein``; other values as they are."""
    if not isinstance(given, str | PathLike) or Path(given).suffix != ".ein":
        return given
    written = text_of(given)
    return family(written, str(given)) if PARAMETERS.search(written) else parse(written, str(given))


def _kind(of: ModelLike) -> str:
    return "a program" if isinstance(of, Program) else "a family" if isinstance(of, Family) else "a model"


KINDS: Mapping[str, VerdictKind] = {"proved": "proved", "refuted": "different", "unproved": "unknown"}


def _compare_families(first: Family, second: Family, budget: float) -> Verdict:
    """Compare two families at all sizes that both allow; a refuted pair is compared at the sizes that refute it."""
    start, ground = perf_counter(), first.common_ground(second)
    found, cases = StepVerdict("unproved", why="the budget was reached"), tuple[SizesProof, ...]()
    with suppress(TimeoutError), interrupt_after(budget, "the comparison"):
        found = first.equals(second)
    why = "" if found.kind == "proved" else str(found)
    here = Verdict(KINDS[found.kind], (), (), 0.0, why=why, guards=ground.guards, sizes=found.sizes)
    if found.kind == "refuted":
        here = replace(here, why=str(found.certificate))
        with suppress(ValueError):
            one, other = (each.written(dict(found.sizes)) for each in (first, second))
            there = compare_programs(one, other, start + budget - perf_counter())
            if there.kind == "different":
                here = replace(here, difference=there.difference, why=there.why, programs=there.programs)
    if found.kind == "proved":
        schemas = [literal_schema(each.template, ground) for each in (first, second)]
        before, after = (schema_text(ground, schema) for schema in schemas)
        cases = (SizesProof(ground.guards, tuple((name, name, before, after) for name in schemas[0].outputs[:1])),)
    return replace(here, seconds=perf_counter() - start, cases=cases)


def _load(first: File, second: File, shapes: Mapping[str, Shape], domains: Domains) -> tuple[Model, Model]:
    """Read both models; *shapes* are those of inputs of the first, the dynamic inputs of the second have the same."""
    one = with_domains(load_model(first, shapes, rewrite=expand_contrib_operators), domains)
    theirs, mine = _dimensions(second), {value.name: value.shape or () for value in one.inputs}
    twins = {name: name for name in theirs if name in mine} or dict(zip(theirs, mine, strict=False))
    dynamic = {name: mine[twins[name]] for name in twins if any(isinstance(d, str) for d in theirs[name])}
    return one, load_model(second, dynamic, rewrite=expand_contrib_operators)


def _dimensions(model: File) -> Mapping[str, tuple[Dimension, ...]]:
    """Return the dimensions of the inputs of *model*; dynamic ones without a name are called by input and position."""
    graph = read_proto(model)[1].graph
    weights = {w.name for w in graph.initializer}
    words: dict[str, str] = {}
    found = {}
    for value in graph.input:
        if value.name not in weights and value.type.HasField("tensor_type"):
            sizes = value.type.tensor_type.shape.dim
            found[value.name] = tuple(
                d.dim_value if d.HasField("dim_value") else _parameter(d.dim_param or f"{value.name} {n}", words)
                for n, d in enumerate(sizes)
            )
    return found


def _sizes_of(file: File, model: Model) -> Iterable[tuple[str, int]]:
    """Yield the dynamic dimensions of *file*, and their sizes in *model*, which was read from it."""
    shapes = {value.name: value.shape or () for value in model.inputs}
    for name, dims in _dimensions(file).items():
        yield from ((d, n) for d, n in zip(dims, shapes.get(name, ()), strict=False) if isinstance(d, str))


def _parameter(name: str, words: dict[str, str]) -> str:
    """Return *name* as a word of the text form, another one for each name; *words* has those so far."""
    if name not in words:
        word = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "size"
        word = word if word[0].isalpha() else f"n{word}"
        words[name] = next(w for n in count() if (w := f"{word}_{n}" if n else word) not in words.values())
    return words[name]


def _compare_at_all_sizes(
    first: File, second: File, shapes: Mapping[str, Shape], domains: Domains, budget: float, parts: bool
) -> Verdict:
    """Compare two models at one choice of sizes of each remainder, and lift the proofs to all sizes.

    Sizes at which the first model cannot be read are left out of the verdict.
    """
    start = perf_counter()
    inputs = _dimensions(first)
    parameters = tuple(dict.fromkeys(d for dims in inputs.values() for d in dims if isinstance(d, str)))
    if not parameters:
        raise Refused("found no dynamic dimension in the inputs of the first model, expected one for all sizes")
    whole = FamilyParameters(tuple(map(Parameter, parameters)))
    chosen = default_sizes(whole)
    for name, shape in shapes.items():
        chosen |= {d: n for d, n in zip(inputs.get(name, ()), shape, strict=False) if isinstance(d, str)}

    def shapes_at(sizes: Mapping[str, int]) -> Mapping[str, Shape]:
        return {name: tuple(d if isinstance(d, int) else sizes[d] for d in dims) for name, dims in inputs.items()}

    pair = _SizedModels(
        lambda sizes: load_model(first, shapes_at(sizes), rewrite=expand_contrib_operators),
        lambda sizes: _load(first, second, shapes_at(sizes), domains),
        integers_of(read_proto(first)[1]) | integers_of(read_proto(second)[1]),
        start + budget,
        parts,
    )
    found, is_whole, waiting = list[tuple[FamilyParameters, Verdict]](), True, [whole]
    while waiting:
        ground = waiting.pop()
        sizes = _sizes_near(ground, chosen)
        if found and not pair.can_be_read(sizes):
            is_whole = False
            continue
        try:
            held, verdict = pair.judge(ground, sizes)
        except ValueError as why:
            if not found:
                raise
            held, verdict = ground, Verdict("unknown", (), (), 0.0, why=f"at {sizes_text(sizes)}: {why}")
        if not verdict:
            proved = f"; proved for {_guards(found, is_whole=False)[0]}" if found else ""
            return replace(verdict, seconds=perf_counter() - start, why=verdict.why + proved)
        found.append((held, verdict))
        waiting += _other_remainders(ground, held)
    kind: VerdictKind = "rounded" if any(each.kind == "rounded" for _, each in found) else "proved"
    cases = tuple(case for _, each in found for case in each.cases)
    seconds, guards = perf_counter() - start, _guards(found, is_whole)
    return replace(found[0][1], kind=kind, seconds=seconds, guards=guards, cases=cases)


def _sizes_near(ground: FamilyParameters, chosen: Mapping[str, int]) -> Mapping[str, int]:
    """Return the sizes *chosen*, or the next larger ones with the remainders of *ground*; different ones stay so."""
    out: dict[str, int] = {}
    for p in ground.parameters:
        n = chosen[p.name] + (p.residue - chosen[p.name]) % p.modulus
        taken = {out[name] for name in out if chosen[name] != chosen[p.name]}
        out[p.name] = next(m for m in count(n, p.modulus) if m not in taken)
    return out


def _other_remainders(whole: FamilyParameters, part: FamilyParameters) -> Iterable[FamilyParameters]:
    """Yield disjoint parts of *whole* that are its sizes with other remainders than *part*."""
    narrow = [replace(p, modulus=q.modulus, residue=q.residue) for p, q in _in_pairs(whole, part)]
    for n, (p, q) in enumerate(_in_pairs(whole, part)):
        for residue in range(p.residue, q.modulus, p.modulus):
            if residue != q.residue:
                other = replace(p, modulus=q.modulus, residue=residue)
                yield replace(whole, parameters=(*narrow[:n], other, *whole.parameters[n + 1 :]))


def _in_pairs(one: FamilyParameters, other: FamilyParameters) -> Iterable[tuple[Parameter, Parameter]]:
    return zip(one.parameters, other.parameters, strict=True)


def _guards(found: Sequence[tuple[FamilyParameters, Verdict]], is_whole: bool) -> tuple[str, ...]:
    """Return the guards of all cases *found*, which together have all remainders if *is_whole*."""
    grounds = [ground for ground, _ in found]
    if is_whole:
        columns = zip(*(ground.parameters for ground in grounds), strict=True)
        return tuple(f"{column[0].name} >= {max(p.least for p in column)}" for column in columns)
    return grounds[0].guards if len(found) == 1 else (" or ".join(" and ".join(ground.guards) for ground in grounds),)


@dataclass(frozen=True, slots=True)
class _SizedModels:
    """Two models at any sizes, *integers* that stand in them, and a time of ``perf_counter`` to stop at."""

    first: Callable[[Mapping[str, int]], Model]
    both: Callable[[Mapping[str, int]], tuple[Model, Model]]
    integers: Iterable[int]
    stop: float
    parts: bool

    def can_be_read(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the first model can be read at *sizes*."""
        try:
            self.first(sizes)
        except ValueError:
            return False
        return True

    def judge(self, ground: FamilyParameters, sizes: Mapping[str, int]) -> tuple[FamilyParameters, Verdict]:
        """Compare the models at *sizes*, and prove them equal for those of *ground*; return the sizes proved."""
        models = self.both(sizes)
        here = compare_models(*models, self.stop - perf_counter(), self.parts)
        if here.kind == "different":
            return ground, replace(here, sizes=tuple(sizes.items()))
        if not here:
            return ground, replace(here, why=f"at {sizes_text(sizes)}: {here.why}")
        if are_one_graph(*models):
            return ground, here
        replay = _ModelReplay(self.both, here.pairs, sizes, self.stop)
        try:
            with interrupt_after(self.stop - perf_counter(), "the proof for all sizes"):
                made = conjecture(ground, sizes, replay.at)
                ground = replay.tested(made, self.integers)
                ground, verdict, unproved = _prove(ground, sizes, made.schemas, here.pairs, self.stop)
        except (Refused, TimeoutError) as why:
            return ground, _told(here, str(why), sizes)
        if verdict.kind == "refuted":
            there = compare_models(*self.both(dict(verdict.sizes)), self.stop - perf_counter(), self.parts)
            if there.kind == "different":
                return ground, replace(there, sizes=verdict.sizes)
        if unproved is not None:
            return ground, _told(here, f"{unproved.first} and {unproved.second}: {verdict}", sizes)
        texts = [schema_text(ground, schema) for schema in made.schemas]
        steps = zip(here.pairs, texts[::2], texts[1::2], strict=True)
        proved = SizesProof(ground.guards, tuple((p.first, p.second, before, after) for p, before, after in steps))
        return ground, replace(here, cases=(proved,))


MOVED = 12
"""Added to each size, and again for each further parameter: constants that change then depend on the sizes.

It keeps the remainders by many numbers, at which a model has the same form.
"""

SMALLEST = 3
"""The smallest sizes at which the form of operators is tested."""

LARGE = (97, 1009)
"""Large sizes at which the form is tested, as at the integers of a model."""


@dataclass(slots=True)
class _ModelReplay:
    """The programs of *pairs* in the models at any sizes; they were found at the sizes *found*.

    Constants that depend on the sizes (the divisor of a mean) are read from tensors of one element, as the proof holds
    for all their values.
    """

    models: Callable[[Mapping[str, int]], tuple[Model, Model]]
    pairs: Sequence[ValuePair]
    found: Mapping[str, int]
    stop: float
    known: dict[tuple[int, ...], list[tuple[Program, Program]]] = field(default_factory=dict)
    """The programs as the models have them, by sizes."""
    weights: list[Sequence[str]] = field(default_factory=list)
    numbers: list[Mapping[int, Access]] = field(default_factory=list)

    def at(self, sizes: Mapping[str, int]) -> list[Program]:
        """Return the two programs of each pair at *sizes*; raises Refused, or TimeoutError after *stop*."""
        if not self.numbers:
            moved = {name: n + MOVED * j for j, (name, n) in enumerate(self.found.items(), 1)}
            self.numbers += map(_dependent_constants, self._written(self.found), self._written(moved))
        both = zip(self._written(sizes), self.numbers, strict=True)
        return [program for two, reads in both for program in _with_numbers(two, reads)]

    def _written(self, sizes: Mapping[str, int]) -> list[tuple[Program, Program]]:
        key = tuple(sizes.values())
        if key not in self.known:
            self.known[key] = self._replayed(sizes)
        return self.known[key]

    def _replayed(self, sizes: Mapping[str, int]) -> list[tuple[Program, Program]]:
        if perf_counter() > self.stop:
            raise TimeoutError("the budget was reached")
        try:
            replayed = list(open_sweep(*self.models(sizes), seeds=()).replay(self.pairs))
        except ValueError as why:
            raise Refused(f"at {sizes_text(sizes)}: {why}") from None
        self.weights = self.weights or [read for _, _, read in replayed]
        for pair, known, (_, _, read) in zip(self.pairs, self.weights, replayed, strict=True):
            if read != known:
                raise Refused(f"at {sizes_text(sizes)} a weight that {pair.first} needs has other elements")
        return [(before, after) for before, after, _ in replayed]

    def tested(self, made: Conjecture, integers: Iterable[int]) -> FamilyParameters:
        """Return the parameters of *made*, whose schemas are the programs at further sizes, too.

        These are the smallest ones, which are no longer allowed if they fail; large ones; and those next to *integers*,
        at which an operator may change its form.  Raises Refused if it does.
        """
        ground = made.ground
        for p in ground.parameters:
            allowed = range(p.modulus * p.first + p.residue, self.found[p.name], p.modulus)
            smallest = [*allowed[:SMALLEST], self.found[p.name]]
            while len(smallest) > 1 and self._has_form(made, {**self.found, p.name: smallest[-2]}):
                smallest.pop()
            least = replace(p, least=max(p.least, smallest[-1]))
            ground = replace(ground, parameters=tuple(least if q == p else q for q in ground.parameters))
            larger = (n + -(n - p.residue) % p.modulus for k in (*integers, *LARGE) for n in (k, k + 1))
            for n in sorted({n for n in larger if n > self.found[p.name]}):
                sizes = {**self.found, p.name: n}
                if not self._has_form(made, sizes):
                    raise Refused(f"at {sizes_text(sizes)} the operators have another form")
        return ground

    def _has_form(self, made: Conjecture, sizes: Mapping[str, int]) -> bool:
        """Whether the schemas of *made* are the programs at *sizes*, up to proved equality."""
        try:
            programs = self.at(sizes)
            written = [instantiate_schema(schema, sizes) for schema in made.schemas]
        except ValueError:
            return False
        both = zip(written, programs, strict=True)
        return all(a == b or certify(a, b, exact_elements=None).kind == "proved" for a, b in both)


def _in_twos(programs: Sequence[Program]) -> list[tuple[Program, Program]]:
    return list(zip(programs[::2], programs[1::2], strict=True))


def _constants(two: tuple[Program, Program]) -> list[float]:
    return [value for program in two for equation in program.equations for value in constants_of(equation.scope)]


def _dependent_constants(here: tuple[Program, Program], there: tuple[Program, Program]) -> Mapping[int, Access]:
    """Return a read for each constant, by position, that differs *here* and *there*: of one tensor for equal ones."""
    names: dict[tuple[float, float], str] = {}
    values = enumerate(zip(_constants(here), _constants(there), strict=False))
    return {n: Tensor(names.setdefault(v, f"n{len(names)}"), ())[()] for n, v in values if v[0] != v[1]}


def _with_numbers(two: tuple[Program, Program], reads: Mapping[int, Access]) -> list[Program]:
    """Return both programs with *reads* in place of the constants at these positions.

    Raises Refused if those of one tensor have several values here, or one of them is that of another constant.
    """
    values = _constants(two)
    new = {values[n]: read for n, read in reads.items() if n < len(values)}
    if any(new.get(value) != reads.get(n) for n, value in enumerate(values)) or len(new) > len(set(new.values())):
        raise Refused("constants that depend on the sizes do not agree as they do at other sizes")
    given = tuple(dict.fromkeys(read.source for read in reads.values() if isinstance(read.source, Tensor)))
    return [
        replace(
            program,
            inputs=(*program.inputs, *given),
            equations=tuple(replace(e, scope=with_constants(e.scope, new)) for e in program.equations),
        )
        for program in two
    ]


def _told(here: Verdict, why: str, found: Mapping[str, int]) -> Verdict:
    told = f"{here.kind} at {sizes_text(found)}, not for all sizes: {why}"
    return replace(here, kind="unknown", why=told)


def _prove(
    ground: FamilyParameters,
    found: Mapping[str, int],
    schemas: Sequence[Schema],
    pairs: Sequence[ValuePair],
    stop: float,
) -> tuple[FamilyParameters, StepVerdict, ValuePair | None]:
    """Prove the two *schemas* of each of *pairs* equal, if necessary above least sizes, up to those *found*.

    Return the parameters, and the verdict on the first pair that is not proved, if there is one.
    """
    both = _in_twos(schemas)
    different = tuple(dict.fromkeys(both))  # layers of one model are often equal

    def in_time() -> Iterable[tuple[Schema, Schema]]:
        for two in different:
            if perf_counter() > stop:
                raise TimeoutError("the budget was reached")
            yield two

    ground = with_least_sizes(ground, found, in_time())
    verdicts = {two: judge_step(ground, *two) for two in different}
    for pair, two in zip(pairs, both, strict=True):
        if verdicts[two].kind != "proved":
            return ground, verdicts[two], pair
    return ground, StepVerdict("proved"), None
