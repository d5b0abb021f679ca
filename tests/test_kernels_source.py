"""The kernel language: its text in three dialects, its rules, and a block as loops, against an interpreter."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from syrupy.assertion import SnapshotAssertion

import einnet_explore as ee
from einnet_explore.codegen.language.lowering import lower_index, lower_scalar, tensor_name
from einnet_explore.codegen.language.printer import emit, entry_name, fission_at_barriers
from einnet_explore.codegen.language.rounding import nearest_integer
from einnet_explore.codegen.language.statements import (
    Assign,
    Barrier,
    Comment,
    Copy,
    Declare,
    For,
    If,
    Kernel,
    LoadPair,
    LocalArray,
    PairOperation,
    Statement,
    Store,
    StorePair,
    check_kernel,
    counted_loop,
    walk_expression,
)
from einnet_explore.codegen.language.values import (
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U64,
    Array,
    Binary,
    Cast,
    Expr,
    LaunchIndex,
    Select,
    Type,
    Unary,
    Var,
    binary_operation,
    call,
    cast,
    conjunction,
    literal,
    select,
    type_of,
)
from einnet_explore.ir import Apply, Compare, Const, Index, Iterator, Tensor, as_index
from einnet_explore.support.errors import Refused
from tests import kernel_machine
from tests.pointwise import index_at

X = Array("x", F32, const=True)
Y = Array("y", F32)
N = Var("n", I64)
T = LaunchIndex("thread")
ZERO, ONE = literal(0), literal(1)


def sums(size: int = 8) -> Kernel:
    """The sum of each block's elements, by halving: shared memory, barriers in a loop, a value kept over barriers."""
    tile, own, here, s = Array("tile", F32, size, "shared"), Var("own", F32), Var("here", I64), Var("s")
    half = Var("half")
    other = binary_operation("+", T, half)
    body = (
        Comment("sums of blocks */ // by halving"),
        LocalArray(tile),
        Declare(own, literal(0.0)),
        Declare(here, cast(I64, LaunchIndex("block")) * size + cast(I64, T)),
        If(here.lt(N), (Assign(own, X[here]),)),
        Store(tile, T, own),
        Barrier(),
        For(
            s,
            ZERO,
            literal(size.bit_length() - 1),
            ONE,
            (
                Declare(half, binary_operation(">>", literal(size // 2), s)),
                If(T.lt(half), (Store(tile, T, tile[T] + tile[other]),)),
                Barrier(),
            ),
        ),
        If(T.eq(0), (Store(Y, LaunchIndex("block"), tile[0]),), (Comment("others have nothing to write"),)),
        Store(Y, LaunchIndex("block") + 10 + T * 10, own * 2.0),
    )
    return Kernel("sum of blocks", (X, Y, N), body, (size, 1, 1))


def halves() -> Kernel:
    """Pairs of halves: read, added, rounded, by packs of four."""
    a, h = Array("a", F16, const=True), Array("h", F16)
    mine, twice, out = (Array(n, F16, 4, "private", align=8) for n in ("mine", "twice", "out"))
    left, right, j = Var("left", F32), Var("right", F32), Var("j")
    pair = (
        PairOperation("+", twice, j, mine, mine),
        LoadPair(left, right, twice, j),
        StorePair(out, j, call("exp", left), right * left),
    )
    body = (
        *(LocalArray(x) for x in (mine, twice, out)),
        Copy(mine, ZERO, a, T * 4, 4),
        For(j, ZERO, literal(4), literal(2), pair, "unroll"),
        Copy(h, T * 4, out, ZERO, 4),
        Store(h, literal(64), select(a[0].lt(1.0), a[1], call("maximum", a[2], -float("inf")))),
    )
    return Kernel("halves", (a, h), body, (16, 1, 1))


def everything() -> Kernel:
    """Every operator, function and literal of interest, in two types."""
    x, y, d, i = Array("x", F32, const=True), Array("y", F32), Array("d", F64), Array("i", I64)
    a, b, e = x[0], x[1], d[0]
    values: list[Expr] = [
        a - (b - a),
        a - b - a,
        a / (a * b),
        Unary("-", Unary("-", a)),
        -(a + b) * 2.0,
        literal(float("inf")),
        literal(-float("inf")),
        literal(float("nan")),
        literal(0.1),
        literal(1e30),
        literal(-1e-20) - literal(-1.0),
        call("fma", a, b, a),
        call("abs", a),
        *(call(f, a) for f in ("exp", "log", "sqrt", "rsqrt", "tanh", "erf", "floor", "sigmoid")),
        call("pow", a, call("minimum", b, 1)),
        select(
            binary_operation("&&", a.lt(b), binary_operation("||", b.ge(a), a.ne(b))),
            a,
            select(Unary("!", a.gt(b)), b, a),
        ),
        cast(F32, cast(I32, a)),
    ]
    doubles = [call(f, e) for f in ("exp", "rsqrt", "sigmoid", "abs", "maximum") if f != "maximum"]
    doubles += [call("maximum", e, 0.1), literal(float("inf"), F64), e / 3]
    n, m = i[0], i[1]
    whole = [
        literal(-(1 << 63), I64),
        literal((1 << 63) - 1, I64),
        n * (m + 1) % 7 // 2,
        binary_operation("<<", n, 3) + binary_operation("&", n, binary_operation("|", m, 1)),
        binary_operation("^", n, binary_operation(">>", m, 1)),
        call("abs", n - m),
        call("minimum", n, cast(I64, literal(-5))),
        cast(I64, literal(-(1 << 31))) + cast(I64, LaunchIndex("grid", 2)) * cast(I64, LaunchIndex("block", 1)),
    ]
    body: list[Statement] = [Store(y, literal(k), v) for k, v in enumerate(values)]
    body += [Store(d, literal(k + 1), v) for k, v in enumerate(doubles)]
    body += [Store(i, literal(k + 2), v) for k, v in enumerate(whole)]
    return Kernel("everything", (x, y, d, i, Var("unused", F64), Var("flag", BOOL)), tuple(body))


@pytest.mark.parametrize("dialect", ["cuda", "opencl", "c"])
@pytest.mark.parametrize("kernel", [sums(), halves(), everything()], ids=lambda k: k.name)
def test_emitted_kernel_is_unchanged(kernel: Kernel, dialect: str, snapshot: SnapshotAssertion) -> None:
    assert emit(kernel, dialect) == snapshot


def test_inputs_of_a_kernel_are_its_constant_arrays_in_order() -> None:
    read, written = (Array(name, F32, const=name != "y") for name in ("b", "y"))
    kernel = Kernel("k", (read, Var("n"), replace(read, name="a"), written), ())
    assert kernel.inputs == ("b", "a")


@pytest.mark.parametrize("dialect", ["cuda", "opencl", "c"])
def test_names_never_reach_the_text(dialect: str) -> None:
    hostile = [
        "x; } int main() {",
        "*/ evil",
        "for",
        "Größe",
        "a b",
        "a_b",
        "__a",
        "9",
        "",
        "a\nb",
        "exp",
        "block_x",
        "size_t",
    ]
    hostile += ["q" * 300, "if", "half2", "M_PI", "int_t", "expf", "vload4", "\\u0041", '"', "threads", "result\0"]
    arrays = [Array(n, F32, noalias=False) for n in hostile]
    body = (
        Comment('*/ } """ \n # define x \\ evil()'),
        *(Store(a, ZERO, literal(float(n))) for n, a in enumerate(arrays)),
    )
    text = emit(Kernel('k"; evil()', tuple(arrays), body), dialect)
    assert not any(sign in text for sign in ("evil;", "} int", "Größe", '"""', "\\", "*/", "\0", "q" * 50))
    names = [line.split("[0]")[0].strip() for line in text.splitlines() if "[0] =" in line]
    assert len(set(names)) == len(hostile)
    assert all(n.isascii() and n.isidentifier() and "__" not in n and len(n) < 50 for n in names)
    assert not {"for", "exp", "block_x", "size_t", "if", "threads", "half2", "M_PI", "int_t", "expf", "vload4"} & set(
        names
    )


def test_kernel_has_the_same_name_in_all_dialects() -> None:
    kernel = Kernel("for", (Y,), ())
    assert entry_name(kernel) == "for_1"
    assert all("for_1(" in emit(kernel, d) for d in ("cuda", "opencl", "c"))


# ---- a block as loops ------------------------------------------------------------------------------------------


def alike(kernel: Kernel, arguments: dict[str, object], grid: tuple[int, int, int] = (2, 1, 1)) -> None:
    """The block as loops gives what its threads give."""
    direct = {k: np.copy(v) if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
    looped = {k: np.copy(v) if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
    kernel_machine.run(kernel, direct, grid)
    body = fission_at_barriers(kernel)
    kernel_machine.run(Kernel("loops", kernel.params, body), looped, grid)
    for name, value in direct.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, looped[name])


def test_block_sums_as_loops_equal_the_interpreter() -> None:
    x = np.arange(16, dtype=np.float32)
    arguments = {"x": x, "y": np.zeros(100, np.float32), "n": 13}
    alike(sums(), arguments)
    kernel_machine.run(sums(), arguments, (2, 1, 1))
    assert list(arguments["y"][:2]) == [28.0, 8 + 9 + 10 + 11 + 12]


def test_paired_halves_as_loops_equal_the_interpreter() -> None:
    kernel = halves()
    store = Store(kernel.params[1], T, kernel.params[0][T] * 3.0)  # type: ignore[index, arg-type]
    split = replace(kernel, body=(*kernel.body[:4], kernel.body[5], Barrier(), store))
    alike(split, {"a": np.arange(64, dtype=np.float16), "h": np.zeros(65, np.float16)}, (1, 1, 1))


@st.composite
def kernels(draw: DrawFn) -> Kernel:
    """Kernels without races: each thread writes its own elements, and reads others' only after a barrier.

    Values are kept in variables and private arrays over barriers, which stand in loops and conditions too.
    """
    block = draw(st.sampled_from([(4, 1, 1), (2, 3, 1), (1, 2, 2), (1, 1, 1), (3, 1, 2)]))
    threads = block[0] * block[1] * block[2]
    place = T + LaunchIndex("thread", 1) * block[0] + LaunchIndex("thread", 2) * (block[0] * block[1])
    shared = Array("shared", I64, threads, "shared")
    own = Array("own", I64, 3, "private")
    out = Array("out", I64)
    count = Var("count")
    variables = [Var(f"v{k}", I64) for k in range(2)]
    loops: list[Var] = []

    def value(depth: int = 2) -> Expr:
        kind = draw(st.integers(0, 5 if depth else 2))
        match kind:
            case 0:
                return literal(draw(st.integers(-5, 5)), I64)
            case 1:
                return cast(I64, draw(st.sampled_from([place, LaunchIndex("block"), *loops, count])))
            case 2:
                return draw(st.sampled_from(variables))
            case 3:
                return own[cast(I32, call("abs", value(depth - 1))) % 3]
            case 4:
                return value(depth - 1) + value(depth - 1)
            case _:
                return call("maximum", value(depth - 1), value(depth - 1) * -1)

    def agreed() -> Expr:
        return draw(st.sampled_from([count, literal(draw(st.integers(0, 2))), LaunchIndex("block"), *loops]))

    def statements(depth: int, level: int, apart: bool) -> tuple[Statement, ...]:
        made: list[Statement] = []
        for k in range(draw(st.integers(1, 3))):
            match draw(st.integers(0, 6 if depth else 3)):
                case 0:
                    made.append(Assign(draw(st.sampled_from(variables)), value()))
                case 1:
                    made.append(Store(own, literal(draw(st.integers(0, 2))), value()))
                case 2:
                    made.append(
                        Store(out, cast(I32, LaunchIndex("block")) * 50 + place * 2 + draw(st.integers(0, 1)), value())
                    )
                case 3 if not apart:
                    # All write, all wait, all read a neighbour's, all wait.
                    made += [Barrier(), Store(shared, place, value()), Barrier()]
                    made.append(Assign(draw(st.sampled_from(variables)), shared[(place + 1) % threads]))
                    made.append(Barrier())
                case 4:
                    var = Var(f"i{level}{k}")
                    stop = agreed()
                    loops.append(var)
                    made.append(counted_loop(var, stop, *statements(depth - 1, level * 10 + k, apart)))
                    loops.pop()
                case 5:
                    inner = statements(depth - 1, level * 10 + k, apart)
                    made.append(If(agreed().lt(1), inner, statements(depth - 1, level * 10 + k + 5, apart)))
                case 6:
                    made.append(If(value().lt(1), statements(depth - 1, level * 10 + k, apart=True)))
                case _:
                    made.append(Comment("nothing"))
        return tuple(made)

    starts = [Declare(v, value(0) if n else literal(1, I64)) for n, v in enumerate(variables[:1])]
    starts.append(Declare(variables[1], literal(2, I64)))
    head = (LocalArray(shared), LocalArray(own), *starts, *(Store(own, literal(k), literal(k, I64)) for k in range(3)))
    variables_end = Store(
        out, cast(I32, LaunchIndex("block")) * 50 + place * 2 + 1, variables[0] + variables[1] * 3 + own[1]
    )
    # ``value(0)`` of the first variable must not read it.
    head = tuple(Declare(s.var, literal(1, I64)) if isinstance(s, Declare) else s for s in head)
    return Kernel("drawn", (out, count), (*head, *statements(2, 1, False), variables_end), block)


@given(kernels(), st.integers(0, 2))
def test_a_block_as_loops_is_its_threads(kernel: Kernel, count: int) -> None:
    alike(kernel, {"out": np.zeros(150, np.int64), "count": count})


def test_interpreter_detects_races() -> None:
    body = (Store(Y, T, literal(1.0)), Store(Y, T + 1, literal(2.0)))
    with pytest.raises(kernel_machine.Race):
        kernel_machine.run(Kernel("race", (Y,), body, (2, 1, 1)), {"y": np.zeros(4, np.float32)})


# ---- expressions of tensor algebra --------------------------------------------------------------------------------


@st.composite
def indices(draw: DrawFn) -> Index:
    iterators = [Iterator("i", -3, 4), Iterator("j", 0, 5)]
    made = as_index(draw(st.integers(-6, 6)))
    for _ in range(draw(st.integers(1, 3))):
        part = as_index(draw(st.sampled_from(iterators))) * draw(st.integers(-4, 4)) + draw(st.integers(-5, 5))
        match draw(st.integers(0, 2)):
            case 1:
                part = part // draw(st.integers(1, 4))
            case 2:
                part = part % draw(st.integers(1, 4))
        made = made + part * draw(st.integers(-2, 2))
    return made


@given(indices())
def test_lowered_quotients_round_down(what: Index) -> None:
    i, j = Iterator("i", -3, 4), Iterator("j", 0, 5)
    thread = kernel_machine.Thread(kernel_machine.Memory(), {}, 0, {})
    made = lower_index(what, {i: Var("i"), j: Var("j")})
    for a in range(-3, 4):
        for b in range(5):
            thread.own = {"i": a, "j": b}
            assert thread.value(made) == index_at(what, {i: a, j: b})


def test_reads_beyond_the_box_are_guarded() -> None:
    i = Iterator("i", -2, 6)
    padded = Tensor("A", (4,), padding=((2, 2),), value=7)
    body = Apply("where", (Compare("<", as_index(i), as_index(5)), padded[(i,)], Const(-1)))
    a = Array("a", I64, 4, const=True)
    made = lower_scalar(body, {i: Var("i")}, lambda _, at: a[at[0]], I64)
    thread = kernel_machine.Thread(kernel_machine.Memory({"a": np.array([1, 2, 3, 4])}), {}, 0, {})
    assert [thread.value(made) for thread.own["i"] in range(-2, 6)] == [7, 7, 1, 2, 3, 4, 7, -1]


def test_a_read_that_is_never_inside_is_its_padding() -> None:
    i = Iterator("i", 5, 6)
    made = lower_scalar(Tensor("A", (4,), padding=((2, 2),), value=7)[(i,)], {}, _no_read, F32)
    assert made == literal(7.0)


@pytest.mark.parametrize(("extent", "kind"), [(6, I32), (1 << 31, I64)])
def test_positions_are_compared_in_32_bits_where_they_fit(extent: int, kind: Type) -> None:
    i, j = Iterator("i", 0, 6), Iterator("j", 0, extent)
    a = Array("a", F32, 6, const=True)
    body = Apply("where", (Compare("<=", as_index(i), as_index(j)), Tensor("A", (6,))[(i,)], Const(-inf)))
    at = {i: Var("i", I64), j: Var("j", I64)}
    made = lower_scalar(body, at, lambda _, where: a[where[0]], F32, I64, eager=True)
    assert isinstance(made, Select) and isinstance(made.condition, Binary)
    assert made.condition.left.type == kind and made.eager


def test_only_cheap_and_legal_reads_are_evaluated_where_they_are_not_chosen() -> None:
    i = Iterator("i", 0, 6)
    a = Array("a", F32, 4, const=True)
    inside, outside = (Tensor("A", (n,), padding=((0, 6 - n),))[(i,)] for n in (6, 4))
    for yes, eager in ((inside, True), (Apply("exp", (inside,)), False), (outside, False)):
        body = Apply("where", (Compare("<", as_index(i), as_index(3)), yes, Const(0)))
        made = lower_scalar(body, {i: Var("i")}, lambda _, where: a[where[0]], F32, eager=True)
        assert isinstance(made, Select) and made.eager == eager


def _no_read(*_: object) -> Expr:
    raise AssertionError


# ---- rules of the language ---------------------------------------------------------------------------------------

V = Var("v", F32)
W = Var("w")
CONST = Array("c", F32, const=True)
HALF = Array("h", F16)
LIMITED = Array("limited", F32, 4)
TILE = Array("tile", F32, 4, "shared")

BROKEN: list[tuple[tuple[Statement, ...], str]] = [
    ((Store(Y, ZERO, V),), "variable v of float32 is used, and not declared so before"),
    ((If(T.eq(0), (Declare(V, literal(1.0)),)), Store(Y, ZERO, V)), "variable v of float32 is used"),
    ((Declare(V), Declare(V)), "v is declared twice"),
    ((Declare(V), If(T.eq(0), (Declare(V),))), "v is declared twice"),
    ((Declare(Var("y", F32)),), "y is declared twice"),
    ((Declare(V, literal(1)),), "variable v of float32 is given a value of int32"),
    ((Assign(V, literal(1.0)),), "variable v is given a value, and not declared before"),
    ((Assign(W, ONE),), "w is a parameter or a loop's"),
    ((counted_loop(Var("i"), 3, Assign(Var("i"), ONE)),), "i is a parameter or a loop's"),
    ((Store(Array("z", F32), ZERO, literal(1.0)),), "array z is used, and not declared so before"),
    ((Store(CONST, ZERO, literal(1.0)),), "array c is constant, and written to"),
    ((Store(Y, ZERO, literal(1)),), "array y of float32 is given a value of int32"),
    ((Store(Y, literal(1.0), literal(1.0)),), "array y has an index of float32"),
    ((Store(LIMITED, literal(4), literal(1.0)),), "array limited of 4 elements has an index of 4"),
    ((Store(Y, literal(-1), literal(1.0)),), "array y of unknown many elements has an index of -1"),
    ((Copy(LIMITED, ZERO, CONST, literal(-1), 1),), "array c of unknown many elements has an index of -1"),
    ((StorePair(HALF, literal(1.0), literal(1.0), literal(1.0)),), "array h has an index of float32"),
    ((PairOperation("+", HALF, literal(-2), HALF, HALF),), "array h of unknown many elements has an index of -2"),
    ((If(T.eq(0), (LocalArray(TILE),)),), "shared array tile is declared where only private ones may be"),
    ((LocalArray(Array("g", F32)),), "global array g is declared where only private ones may be"),
    ((Copy(Y, ZERO, HALF, ZERO, 2),), "2 elements of float16 are copied to float32"),
    ((Copy(Y, ZERO, CONST, ZERO, 0),), "0 elements of float32 are copied to float32"),
    ((LoadPair(V, Var("u", F32), Y, ZERO),), "y of float32 is read in pairs"),
    ((StorePair(Y, ZERO, literal(1.0), literal(1.0)),), "a pair of float32 is written to y of float32"),
    ((StorePair(HALF, ZERO, ONE, ONE),), "a pair of int32 is written to h of float16"),
    ((PairOperation("/", HALF, ZERO, HALF, HALF),), "/ of pairs of float16 and float16 into float16"),
    ((PairOperation("+", Y, ZERO, HALF, HALF),), "into float32"),
    ((For(Var("i"), ZERO, literal(3, I64), ONE, ()),), "loop i of int32 has bounds of int32 and int64"),
    ((For(Var("i"), ZERO, ONE, ZERO, ()),), "loop i goes in steps of 0"),
    ((counted_loop(W, 3),), "w is declared twice"),
    ((If(ONE, ()),), "a condition of type int32, expected bool"),
    ((If(T.eq(0), (Barrier(),)),), r"a barrier under a value of thread\[0\]"),
    ((counted_loop(Var("i"), T, Barrier()),), r"a barrier under a value of thread\[0\]"),
    ((Declare(Var("t"), T), If(Var("t").eq(0), (Barrier(),))), "a barrier under a value of t"),
    ((Declare(V, literal(0.0)), Assign(V, literal(1.0)), If(V.lt(1.0), (Barrier(),))), "under a value of v"),
    ((If(Y[0].lt(1.0), (Barrier(),)),), "a barrier under a value of y"),
    ((LocalArray(TILE), If(TILE[0].lt(1.0), (Barrier(),))), "a barrier under a value of tile"),
    ((Store(Y, ZERO, Binary("+", literal(1.0), ONE)),), r"\+ joins float32 and int32"),
    ((Store(Y, ZERO, Select(ONE, literal(1.0), literal(1.0))),), "a choice between float32 and float32 by int32"),
    ((Store(Y, ZERO, Unary("~", literal(1.0))),), "~ of float32"),
    ((Store(Y, ZERO, Cast(F16, literal(1.0))),), "a value cannot be cast to float16"),
]


@pytest.mark.parametrize(("body", "says"), BROKEN, ids=[says for _, says in BROKEN])
def test_broken_kernels_are_refused(body: tuple[Statement, ...], says: str) -> None:
    kernel = Kernel("broken", (Y, CONST, HALF, LIMITED, W), body, (4, 1, 1))
    with pytest.raises(Refused, match=f"kernel broken: .*{says}"):
        check_kernel(kernel)
    for dialect in ("cuda", "opencl", "c"):
        with pytest.raises(Refused):
            emit(kernel, dialect)


def test_barrier_under_a_uniform_condition_is_accepted() -> None:
    i, u = Var("i"), Var("u")
    body = (
        Declare(u, W * 2 + LaunchIndex("block")),
        If(u.lt(cast(I32, CONST[0])), (counted_loop(i, u, Barrier(), If(i.eq(u), (Barrier(),))),)),
    )
    check_kernel(Kernel("agreed", (Y, CONST, W), body, (4, 1, 1)))


def test_pair_kept_over_a_barrier_equals_the_interpreter() -> None:
    mine = Array("mine", F16, 4, "private")
    body = (LocalArray(mine), PairOperation("+", mine, ZERO, HALF, HALF), Barrier(), Store(HALF, T, mine[0]))
    kernel = Kernel("kept", (HALF,), body, (4, 1, 1))
    assert "__hadd2" in emit(kernel, "cuda")
    alike(kernel, {"h": np.arange(8, dtype=np.float16)}, (1, 1, 1))


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: literal(300, I8), "300 is no number of type int8"),
        (lambda: literal(-1, U8), "-1 is no number of type uint8"),
        (lambda: literal(1 << 64, U64), "is no number of type uint64"),
        (lambda: literal(1.5, I32), "1.5 is no number of type int32"),
        (lambda: literal(float("inf"), I32), "inf is no number of type int32"),
        (lambda: Var("v", F16), "float16 is a type of memory"),
        (lambda: LaunchIndex("warp"), r"id warp\[0\]"),
        (lambda: LaunchIndex("thread", 3), r"id thread\[3\]"),
        (lambda: Array("a", F32, 0, "shared"), "shared array a has 0 elements"),
        (lambda: Array("a", F32, -1), "global array a has -1 elements"),
        (lambda: Array("a", F32, 4, "local"), "array a in local"),
        (lambda: Array("a", F32, 4, "private", align=12), "an alignment of 12 bytes"),
        (lambda: Y[literal(1.0)], "an index of type float32"),
        (lambda: Y[0] + ONE, r"\+ joins float32 and int32"),
        (lambda: Y[0] % 2.0, "% of float32"),
        (lambda: binary_operation("@", ONE, ONE), "@ of int32"),
        (lambda: binary_operation("&&", ONE, ONE), "&& of int32"),
        (lambda: literal(1, I8) + literal(1, U8), r"\+ joins int8 and uint8"),
        (lambda: call("sin", ONE), "sin of 1 arguments is no function"),
        (lambda: call("exp", Y[0], Y[0]), "exp of 2 arguments is no function"),
        (lambda: call("exp", ONE), "exp of int32: expected floats"),
        (lambda: call("maximum", ONE, literal(1, I64)), "maximum of int32, int64"),
        (lambda: cast(F16, literal(1.0)), "cannot be cast to float16"),
        (lambda: select(ONE, 1, 2), "a condition of type int32"),
        (lambda: type_of(np.complex64), "dtype .*complex64"),
        (lambda: type_of(">f4"), "dtype >f4"),
        (lambda: type_of("nothing"), "dtype nothing"),
        (lambda: Kernel("k", (), (), (1025, 1, 1)), "at most 1024 threads"),
        (lambda: Kernel("k", (), (), (0, 1, 1)), "expected positive numbers"),
        (lambda: Kernel("k", (TILE,), ()), "parameter tile is a shared array"),
        (lambda: emit(Kernel("k", (), ()), "metal"), "dialect 'metal': expected one of cuda, opencl, c"),
        (lambda: lower_scalar(Apply("exp", (Const(1),)), {}, _no_read, I32), "exp of int32: it gives no integers"),
        (lambda: lower_scalar(Apply("minimum", (Const(1),)), {}, _no_read, F32), "minimum of 1 arguments"),
    ],
)
def test_malformed_kernel_source_is_refused(made: object, says: str) -> None:
    with pytest.raises(Refused, match=says):
        made()  # type: ignore[operator]


def test_integers_are_folded_and_widened() -> None:
    i = Var("i")
    assert i * 1 + 0 == i and i * 0 == literal(0) and literal(2) + 3 == literal(5) and i % 1 == literal(0)
    assert (i + literal(1, I64)).type == I64 and (literal(1, I16) + i).type == I32
    assert conjunction() is None and conjunction(i.lt(1)) == i.lt(1)
    assert literal((1 << 31) - 1) + 1 == Binary("+", literal((1 << 31) - 1), literal(1))
    assert [type_of(t.dtype) for t in (BOOL, F16, U8)] == [BOOL, F16, U8]


def _requantised(text: str) -> Expr:
    """The kernel expression of *text*, a function of bytes A[i] and B[i]."""
    program = ee.parse(f"tensor A[9] uint8\ntensor B[9] int8\nY[i:9] = {text}\noutput Y")
    bytes_ = {"A": Var("a", U8), "B": Var("b", I8)}
    scope = program.equations[0].scope
    at = {x: literal(0) for x in scope.traversals}
    return cast(U8, lower_scalar(scope.body, at, lambda source, _: bytes_[tensor_name(source)], F64))


@pytest.mark.parametrize(
    "text",
    [
        "uint8(minimum(maximum(round((0.048896674 * A[i] - 7.138914 + 0.03417093 * B[i]) / 0.04424368), 0), 255))",
        "uint8(minimum(relu(9 + round(0.731 * A[i] + 0.3)), 200))",
        "uint8(minimum(relu(round(0.77 * A[i] + 0.3125 * B[i])), 255))",
    ],
)
def test_bytes_are_requantised_in_single_precision_where_all_integers_are_the_same(text: str) -> None:
    made = _requantised(text)
    assert nearest_integer(made) is not None and not any(p.type == F64 for p in walk_expression(made))
    out = Array("O", U8, 1)
    source = emit(Kernel("k", (out, Var("a", U8), Var("b", I8)), (Store(out, literal(0), made),)), "c")
    assert "fmaf(" in source and "double" not in source


@pytest.mark.parametrize(
    "text",
    [
        "uint8(minimum(relu(round(0.001 * A[i] * B[i] + 1)), 255))",
        "uint8(minimum(relu(round(exp(0.01 * A[i]))), 255))",
        # Every other number is next to a tie: below it up to 128, then above it.
        "uint8(minimum(relu(round(0.500000001 * A[i] + 0.499999872)), 255))",
    ],
)
def test_bytes_are_requantised_in_double_precision_where_integers_differ(text: str) -> None:
    assert any(part.type == F64 for part in walk_expression(_requantised(text)))
