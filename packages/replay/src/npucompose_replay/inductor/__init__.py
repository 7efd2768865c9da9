"""The way through Inductor: passes first, how its kernels are made here, its code read and recorded, frozen weights.

Which library computes a product is decided in `products`, what later processes find again in `kept`.
"""
