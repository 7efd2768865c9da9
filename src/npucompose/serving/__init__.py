"""Engines that serve models, each with a recipe as what it loads: how its own plug-in interface takes one.

Knows the engines' interfaces; what is compiled and recorded, and how, is said below. Nothing of npucompose imports it.
"""
