# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Your own rule, your own operator
#
# Nothing in the engine is registered. A rule is a value, an operator is a value; whoever has one hands it to a session or a search, next to the library's. Neither is
# trusted: each step is certified by the same checker, which knows no rules at all.
#
# ## A rule in twenty lines
#
# A non-decreasing function of a maximum is the maximum of the function: $\max_s \varphi(f) = \varphi(\max_s f)$. From left to right it applies $\varphi$ once instead of
# once for each $s$, and it leaves a plain maximum, which a library may know. No rule of ours says so.
#
# A rule needs a name, a law for readers, a **rewrite** that refuses what is illegal, and a **propose** that says where it is worth trying. (`encode` and `decode` give its parameters
# their JSON form; this one has none.)

# %%
from dataclasses import replace

import numpy as np

import einnet_explore as ee
from einnet_explore.checker import check_file
from einnet_explore.ir import Apply, Scope
from einnet_explore.rules import INTER_RULES, RULES
from einnet_explore.runtime.program import compile_program

# %%
GROWING = ("relu", "exp", "tanh", "sigmoid", "sqrt")


def rewrite(scope, params=None, functions=GROWING):
    match scope:
        case Scope(reduce="max", summations=(_, *_), domain=(), body=Apply(function, (inside,))):
            if function not in functions:
                raise ee.Refused(f"{function} is none of {', '.join(functions)}: it may fall where its argument grows")
            largest = replace(scope, body=inside, padding=(), value=0)
            outside = Apply(function, (largest[scope.traversals],))
            return replace(scope, summations=(), reduce="sum", body=outside)
    raise ee.Refused(f"expected the max of a function over a box, found the {scope.reduce} of {scope.body!r}")


def propose(scope):
    try:
        rewrite(scope)
    except ee.Refused:
        return
    yield None


LAW = r"\max_{\vec s} \varphi(f) \mapsto \varphi\big(\max_{\vec s} f\big), \qquad \varphi \text{ non-decreasing}"
MAX_OUTSIDE = ee.scope_rule("max_outside", LAW, propose, rewrite, lambda params: {}, lambda scope, params: None)
ee.rule_page(MAX_OUTSIDE)

# %% [markdown]
# That is all. A session that is given it offers it, applies it, undoes it, and writes it into its history:

# %%
pooled = ee.parse("""
tensor A[1, 4, 8, 8]
Y[n:1, c:4, h:7, w:7] = max[r:2, s:2] relu(A[n, c, h+r, w+s])
""")
session = ee.explore(pooled, rules=(*RULES, *INTER_RULES, MAX_OUTSIDE))
session.apply("max_outside", at="Y")
session.formula()

# %%
session.check()

# %% [markdown]
# *Exact*, not *proved*: that ReLU grows is no axiom of the checker, so it evaluated both sides on random integers at every element of the result.
#
# A session is saved and loaded like any other, as long as the reader has the rule. Its record can be *checked* by somebody who has not (`einnet-explore check`):

# %%
session.save("mine.json")
print(ee.Session.load("mine.json", rules=(MAX_OUTSIDE,)))
print("the record holds:", check_file("mine.json").ok)

# %% [markdown]
# It prints itself as Python, too. Your rule is imported from where it was defined: here that is this notebook, elsewhere it would be your module.

# %%
print(session.script())

# %% [markdown]
# And where the rule does not apply, its refusal is in our words:

# %%
ee.explore(ee.ops.matmul(4, 5, 6), rules=(MAX_OUTSIDE,)).refusals(at="Y")

# %% [markdown]
# ## In a search
#
# Without our rule the maximum of a ReLU matches no operator, and a kernel has to be generated for all of it. With the rule, MaxPool is found:

# %%
ee.search(pooled, max_depth=2).start().wait()

# %%
run = ee.search(pooled, max_depth=2, rules=(*RULES, MAX_OUTSIDE)).start().wait()
run

# %%
found = next(c for c in run.candidates if c.operators)
ee.show(found)

# %% [markdown]
# ## What if my rule is wrong?
#
# Someone adds `neg` to the list, which *falls*. The rule then rewrites what it must not. The certificate does not ask what the rule thought:

# %%
falling = ee.parse(ee.text(pooled).replace("relu(", "-("))
wrong = falling.replace_at((0,), rewrite(falling.scope_at((0,)), functions=(*GROWING, "neg")))
certificate = ee.certify(falling, wrong)
assert not certificate.ok
certificate

# %% [markdown]
# The list as it is refuses it:

# %%
ee.explore(falling, rules=(MAX_OUTSIDE,)).refusals(at="Y")

# %% [markdown]
# ## An operator in one line
#
# An operator is a name and its canonical expression. Iterators and attributes are what you write: `sh*h + dh*r - ph : H` is a dimension of extent `H`, read with a stride, a dilation and a
# padding that matching has to solve. Here is a depthwise convolution, one filter for each channel:

# %%
DEPTHWISE = ee.Operator(
    "DepthwiseConv2d",
    "Y[n, c, h, w] = sum[r, s] X[n, c, sh*h + dh*r - ph : H, sw*w + dw*s - pw : W] * K[c, r, s]",
)

# %% [markdown]
# From the expression alone come its iterator table, the distance of any scope to it, and the equations for its attributes:

# %%
mobile = ee.ops.depthwise_conv2d(N=1, H=8, W=8, C=4, R=3, S=3, stride=2, padding=1)
operators = (*ee.OPERATORS, DEPTHWISE)
ee.explore(mobile, operators=operators).table("DepthwiseConv2d")

# %%
run = ee.search(mobile, target="DepthwiseConv2d", operators=operators, max_depth=1).start().wait()
run

# %% [markdown]
# Stride 2, padding 1 and no dilation were solved from the indices, and the call is proved to mean what the expression says:

# %%
found = next(c for c in run.candidates if c.operators)
(call,) = found.operators
print({name: value for name, value in call.via.attributes if name in ("sh", "sw", "dh", "dw", "ph", "pw")})
ee.certify(mobile, found.program)

# %% [markdown]
# ## And it runs
#
# An operator that no library is told to run is generated from its canonical expression. Give it `onnx=` (as those in `operators/library.py` have it), and ONNX Runtime is measured against that.

# %%
rng = np.random.default_rng(0)
A, K = (rng.integers(-9, 9, tensor.shape) for tensor in found.program.inputs)
compiled = compile_program(found.program, threads=1)
result = compiled.run({"A": A.astype(np.float32), "K": K.astype(np.float32)})["Y"]
assert (result == ee.evaluate(mobile, {"A": A, "K": K})["Y"]).all()
print("T1 is run by", compiled.engines["T1"], "and right in all", result.size, "elements")

# %% [markdown]
# **Exercises.**
#
# 1. The mirror image of our rule: $\min_s \varphi(f) = \varphi(\min_s f)$. Change one word, and see what the certificate says.
# 2. A function that falls turns a maximum into a minimum: $\max_s -f = -\min_s f$. Write that rule.
# 3. Write `MatVec` as an operator (`"y[m] = sum[k] A[m, k] * x[k]"`), and search a 3×3 convolution with one output channel towards it.
