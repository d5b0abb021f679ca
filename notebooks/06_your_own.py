# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Your own rule, your own operator
#
# The engine has no registry. Rules and operators are values: pass your own to a session or a search, in the same list
# as the library's. Neither is trusted. The same checker certifies every step, and it knows no rules at all.
#
# ## A rule in twenty lines
#
# The maximum commutes with a non-decreasing function: $\max_s \varphi(f) = \varphi(\max_s f)$. Applied from left to
# right, the rule evaluates $\varphi$ once instead of once for each $s$. It leaves a plain maximum, which may match a
# library operator. (The library has a more general rule, `monotone_exchange`, which the search of one expression does
# not try.)
#
# A rule consists of a name, a law for readers, a **rewrite** function that refuses illegal input, and a **propose**
# function that lists where to try it. (This rule has no parameters. Parameters are a dataclass, whose fields make up
# their JSON form.)
#
# Patterns match the classes of `ee.ir`; `help(ee.ir)` lists them. In `ee.ir.Apply(function, arguments)`, the functions
# are called as in the text form: `+`, `-`, `*`, `/`, `exp`, `maximum`, …; a minus sign in front is `neg`. Numbers are
# `Const(2)`, elements of tensors `Access(tensor, index)`. Sums and products are flat, so `2*A[i]*A[i]` has three
# arguments; `ee.ir.mul` and `ee.ir.add` make such products and sums. `print(scope.body)` shows a body in this form:
# `*(2, A[i], A[i])`.

# %%
from dataclasses import replace

import numpy as np

import einnet_explore as ee

# %%
GROWING = ("relu", "exp", "tanh", "sigmoid", "sqrt")


def rewrite(scope, params=None, functions=GROWING):
    match scope:
        case ee.ir.Scope(reduce="max", summations=(_, *_), domain=(), body=ee.ir.Apply(function, (inside,))):
            if function not in functions:
                raise ee.Refused(f"{function} is none of {', '.join(functions)}, so it may be decreasing")
            largest = replace(scope, body=inside, padding=(), value=0)
            outside = ee.ir.Apply(function, (largest[scope.traversals],))
            return replace(scope, summations=(), reduce="sum", body=outside)
    raise ee.Refused(f"expected the max of a function over a box, found the {scope.reduce} of {scope.body!r}")


def propose(scope):
    try:
        rewrite(scope)
    except ee.Refused:
        return
    yield None


LAW = r"\max_{\vec s} \varphi(f) \mapsto \varphi\big(\max_{\vec s} f\big), \qquad \varphi \text{ non-decreasing}"
MAX_OUTSIDE = ee.scope_rule("max_outside", LAW, propose, rewrite)
ee.rule_page(MAX_OUTSIDE)

# %% [markdown]
# The rule is complete. Pass it to a session, and the session can list, apply, undo and record it:

# %%
pooled = ee.parse("""
tensor A[1, 4, 8, 8]
Y[n:1, c:4, h:7, w:7] = max[r:2, s:2] relu(A[n, c, h+r, w+s])
""")
session = ee.explore(pooled, rules=(*ee.RULES, *ee.rules.INTER_RULES, MAX_OUTSIDE))
session.apply("max_outside", at="Y")
session.formula()

# %%
session.check()

# %% [markdown]
# The certificate is *proved*. The checker knows that ReLU is non-decreasing, but it knows nothing of our rule: it
# compares the two programs. If a true law is beyond its theory, such as $\max(a, b) + \min(a, b) = a + b$, it compares
# both sides on random inputs, and the certificate is *exact*: a test, not a proof.
#
# A session with your rule is saved and loaded like any other, provided that the reader has the rule. A reader without
# the rule can still *check* and *show* the record (`einnet-explore check mine.json --rule max_outside`):

# %%
session.save("mine.json")
print(ee.Session.load("mine.json", rules=(MAX_OUTSIDE,)))
print("the record holds:", ee.check_file("mine.json", rules=("max_outside",)).ok)

# %% [markdown]
# The session prints itself as Python, too. The code imports your rule from its module: here this notebook, in your
# project your own module.

# %%
print(session.script())

# %% [markdown]
# If the rule does not apply, the session shows the message that we wrote in `rewrite`:

# %%
ee.explore(ee.ops.matmul(4, 5, 6), rules=(MAX_OUTSIDE,)).refusals(at="Y")

# %% [markdown]
# ## In a search
#
# A search of one expression (`between=()`) without our rule matches no operator to the maximum of a ReLU, so a kernel
# must be generated for all of it. With the rule, it finds MaxPool. (So does `monotone_exchange`, the package's rule for
# all monotone functions, which is one of the rules between expressions.)

# %%
ee.search(pooled, max_depth=2, between=())

# %%
run = ee.search(pooled, max_depth=2, rules=(*ee.RULES, MAX_OUTSIDE), between=())
run

# %%
found = next(c for c in run.candidates if c.operators)
ee.show(found)

# %% [markdown]
# ## What if my rule is wrong?
#
# Suppose somebody adds `neg` to the list, although it is *decreasing*. The rule then makes an illegal rewrite. The
# certificate does not depend on the rule, and it finds the error:

# %%
falling = ee.parse(ee.text(pooled).replace("relu(", "-("))
wrong = falling.replace_at((0,), rewrite(falling.scope_at((0,)), functions=(*GROWING, "neg")))
verdict = ee.equal(falling, wrong)
assert not verdict.ok
verdict

# %% [markdown]
# With the original list, the rule refuses this expression:

# %%
ee.explore(falling, rules=(MAX_OUTSIDE,)).refusals(at="Y")

# %% [markdown]
# ## An operator in one line
#
# An operator is a name and a canonical expression. The expression declares iterators and attributes: `sh*h + dh*r - ph
# : H` reads a dimension of extent `H` with a stride, a dilation and a padding, and matching solves for these three
# attributes. This is a depthwise convolution, with one filter for each channel:

# %%
DEPTHWISE = ee.Operator(
    "DepthwiseConv2d",
    "Y[n, c, h, w] = sum[r, s] X[n, c, sh*h + dh*r - ph : H, sw*w + dw*s - pw : W] * K[c, r, s]",
)

# %% [markdown]
# The package derives the iterator mapping table, the expression distance of any scope, and the equations for the
# attributes from this expression:

# %%
mobile = ee.ops.depthwise_conv2d(N=1, H=8, W=8, C=4, R=3, S=3, stride=2, padding=1)
operators = (*ee.OPERATORS, DEPTHWISE)
ee.explore(mobile, operators=operators).table("DepthwiseConv2d")

# %%
run = ee.search(mobile, target="DepthwiseConv2d", operators=operators, max_depth=1)
run

# %% [markdown]
# Matching solved the index equations for stride 2, padding 1 and dilation 1. The certificate proves that the call
# computes the original expression:

# %%
found = next(c for c in run.candidates if c.operators)
(call,) = found.operators
print({name: value for name, value in call.via.attributes if name in ("sh", "sw", "dh", "dw", "ph", "pw")})
ee.equal(mobile, found.program)

# %% [markdown]
# ## And it runs
#
# Without `onnx=`, a kernel is generated from the canonical expression. With `onnx=` (see `operators/library.py` for
# examples), ONNX Runtime's implementation is measured as well, and the faster one is used.

# %%
rng = np.random.default_rng(0)
A, K = (rng.integers(-9, 9, tensor.shape) for tensor in found.program.inputs)
compiled = ee.compile_program(found.program, threads=1)
result = compiled.run({"A": A.astype(np.float32), "K": K.astype(np.float32)})["Y"]
assert (result == ee.evaluate(mobile, {"A": A, "K": K})["Y"]).all()
print(f"T1: {compiled.engines['T1']}; all {result.size} elements are correct")

# %% [markdown]
# **Exercises.**
#
# 1. Write the mirror image of our rule: $\min_s \varphi(f) = \varphi(\min_s f)$. Change one word, and read the
#    certificate.
# 2. A decreasing function turns a maximum into a minimum: $\max_s -f = -\min_s f$. Write that rule.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
single = ee.ops.conv2d(N=1, H=6, W=6, C=4, F=1, R=3, S=3, padding=1)


def calls_matvec(program):
    calls = [equation.via.operator for equation in program.equations if equation.via]
    return "" if "MatVec" in calls else f"it calls {', '.join(calls) or 'nothing'}, expected MatVec"


matvec = ee.Exercise(
    "`matvec`: define an operator `MatVec`, a matrix times a vector, and find a program that computes the convolution `single`, "
    "with one output channel, by it. `matvec.grade(candidate)` checks the answer.",
    single,
    hint="`ee.search` takes `target` and `operators`.",
    why="a matrix of all windows, times the filter as a vector",
    objection=calls_matvec,
)
matvec

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
MATVEC = ee.Operator("MatVec", "y[m] = sum[k] A[m, k] * x[k]")
matvec.grade(ee.search(single, target="MatVec", operators=(*ee.OPERATORS, MATVEC), max_depth=1).best)
