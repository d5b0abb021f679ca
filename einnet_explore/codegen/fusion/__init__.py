"""Fused reductions: a program of element-wise operations and reductions as one kernel.

Source: D. Nishino and Z. Xu, "CuPy kernel fusion, extended" (2019): operations in order, abstract sizes with recorded
equalities, store-to-load forwarding, few synchronisations, shared temporaries, dimensions collapsed at call time.
"""
